r"""The prompt of a chat, as RWKV's World and G1 models were trained on it.

The spelling is that of BlinkDL/RWKV-LM, ``RWKV-v7/RWKV7-G1x-templates.txt``::

    System: s\n\nUser: x\n\nAssistant: y\n\nUser: z\n\nAssistant:
    ... Assistant: <think                 the model thinks first
    ... Assistant: <think>\n</think       it has thought already, so it answers at once

A prompt ends inside a word or right after the colon, never with the blank or the ``>`` that comes
next: the model was trained on the longest tokens, and those begin with them (`` Blue``, ``>\n``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from wkvm.text.chat import NEXT_TURN

#: Whether an answer begins with reasoning: no; only the empty form of it; yes.
Thinking = Literal["off", "fast", "on"]

_OPENINGS: dict[Thinking, bytes] = {
    "off": b"",
    "fast": b" <think>\n</think",
    "on": b" <think",
}


@dataclass(frozen=True)
class Turn:
    """A question and its answer.

    Attributes:
        user: the question, cleaned.
        thinking: the mode in which it was asked.
        said: what the model generated, without blanks at the end and what ended it. Not always
            UTF-8.
        reasoning: the thoughts in it, and
        answer: the rest, both as they were shown.
        end: ``"stop"`` (a stop string), ``"eos"`` (token 0), ``"length"``, ``"full"`` (the KV
            cache), ``"interrupted"``.
    """

    user: str
    thinking: Thinking
    said: bytes
    reasoning: str
    answer: str
    end: str


class Template(Protocol):
    """Turns in, the prompt for the next answer out."""

    @property
    def name(self) -> str:
        """Tells templates apart; a saved conversation goes on with the same one."""

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end an answer."""

    def clean(self, text: str) -> str:
        """A system text or question in the form in which it enters the prompt."""

    def prompt(self, system: str, turns: Sequence[Turn], user: str, thinking: Thinking) -> bytes:
        """Everything up to where the answer to `user` begins; `system` and `user` are clean."""


class WorldTemplate:
    """The template of the World and G1 models."""

    name = "world"
    stop = (NEXT_TURN,)

    def clean(self, text: str) -> str:
        r"""As the official ``clean_txt``: ``\r\n`` is ``\n``, no empty lines, no blanks around."""
        return re.sub(r"\n{2,}", "\n", text.replace("\r\n", "\n")).strip()

    def prompt(self, system: str, turns: Sequence[Turn], user: str, thinking: Thinking) -> bytes:
        """The prompt, in which earlier answers stand as they were generated, thoughts included."""
        parts = [b"System: %b\n\n" % system.encode()] if system else []
        for turn in turns:
            parts += [_question(turn.user, turn.thinking), turn.said, b"\n\n"]
        return b"".join([*parts, _question(user, thinking)])


def _question(user: str, thinking: Thinking) -> bytes:
    return b"User: %b\n\nAssistant:%b" % (user.encode(), _OPENINGS[thinking])


#: The template of the World and G1 models.
WORLD = WorldTemplate()
