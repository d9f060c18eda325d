"""Lines from a person: edited, with a history, in a terminal; as they come from a pipe."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from wkvm.cli.inputs import decode
from wkvm.errors import FileError, UnsupportedError


class Lines(Protocol):
    """Where the next line comes from."""

    #: Whether a person waits for what happens next.
    is_terminal: bool

    def read(self, prompt: str, default: str = "") -> str:
        """The next line, without its end; a terminal offers `default` for editing.

        Raises:
            EOFError: there is none.
        """


def open_lines(words: Iterable[str]) -> Lines:
    """The lines of standard input.

    Args:
        words: that a terminal completes at the beginning of a line.

    Raises:
        FileError: standard input is closed.
        UnsupportedError: it is a terminal, and the package prompt_toolkit is not installed.
    """
    if sys.stdin is None:
        raise FileError("cannot read standard input: it is closed")
    return TerminalLines(words) if sys.stdin.isatty() else PipedLines()


class PipedLines:
    """Standard input, line by line."""

    is_terminal = False

    def __init__(self) -> None:
        self._n_read = 0

    def read(self, prompt: str, default: str = "") -> str:
        """The next line; raises FormatError if it is not UTF-8."""
        del prompt, default
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        self._n_read += 1
        return decode(line.rstrip(b"\r\n"), f"line {self._n_read} of standard input")


class TerminalLines:
    """A prompt with editing, history over sessions, and completion of commands.

    Alt+Enter begins a new line; a pasted text keeps its own.
    """

    is_terminal = True

    def __init__(self, words: Iterable[str]) -> None:
        try:
            from prompt_toolkit import PromptSession  # noqa: PLC0415 -- optional, and slow
            from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415
            from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415
            from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent  # noqa: PLC0415
            from prompt_toolkit.output import create_output  # noqa: PLC0415
        except ImportError as error:
            raise UnsupportedError(
                "chatting in a terminal needs the package prompt_toolkit: pip install "
                "'wkvm[chat]', or pipe the messages in, a line each"
            ) from error
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        file = _history_file()
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if file is None else FileHistory(file),
            completer=WordCompleter(sorted(words), sentence=True),
            complete_while_typing=False,
            key_bindings=keys,
            output=create_output(always_prefer_tty=True),
        )

    def read(self, prompt: str, default: str = "") -> str:
        """The next line; raises KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D."""
        return self._session.prompt(prompt, default=default)


def _history_file() -> Path | None:
    """``$XDG_STATE_HOME/wkvm/chat_history``, readable by its owner alone; None if it cannot be."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(base) / "wkvm" / "chat_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        print(f"note: no history: cannot write {file}: {error.strerror}", file=sys.stderr)
        return None
    return file
