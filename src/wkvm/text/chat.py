"""A chat as RWKV models read it: turns of ``User:`` and ``Assistant:``, a blank line between."""

import re

#: What ends the assistant's turn: the user's next one.
NEXT_TURN = "\n\nUser:"

_USER = re.compile(r"(?:\A|\n\n)User:")
_TYPED_TURNS = re.compile(r"(?:\\n){2}(?=(?:User|Assistant):)")


def is_chat(prompt: str) -> bool:
    """Whether a prompt holds a user's turn and the beginning of an answer to it."""
    turn = _USER.search(prompt)
    return turn is not None and prompt.find("\n\nAssistant:", turn.end()) >= 0


def with_line_breaks(typed: str) -> str:
    r"""A chat as it was typed on one line, ``\n\n`` before a turn made the line breaks it means.

    Everything else stays as it is: text that is not one line, or does not begin with a turn, and
    any other ``\n``, which a turn about code may well hold.

    >>> with_line_breaks(r"User: What does print('\n') do?\n\nAssistant:")
    "User: What does print('\\n') do?\n\nAssistant:"
    """
    if "\n" in typed or not typed.startswith(("User:", "System:")):
        return typed
    return _TYPED_TURNS.sub("\n\n", typed)
