"""Text that a command takes from its argument, a file, or standard input."""

import os
import sys
from pathlib import Path

import typer

from wkvm.errors import FileError, FormatError

#: What stands for standard input in place of a text or a file.
STANDARD_INPUT = "-"


def read_input(argument: str | None, file: Path | None, name: str) -> tuple[bytes, str]:
    """The bytes of the one place that was named, and what to call it in a message.

    Args:
        argument: as it was typed; ``-`` stands for standard input.
        file: likewise; with neither, standard input is read, unless it is a terminal.
        name: of the argument in the help.

    Raises:
        typer.BadParameter: both were named, or nothing.
        FileError: the file, or standard input, cannot be read.
    """
    if argument is not None and file is not None:
        raise typer.BadParameter("give it once: as the argument or in a file.", param_hint=name)
    if argument not in (None, STANDARD_INPUT):
        return os.fsencode(argument), name
    if file is not None and str(file) != STANDARD_INPUT:
        try:
            return file.read_bytes(), str(file)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise FileError(f"cannot read {file}: {getattr(error, 'strerror', error)}") from error
    if sys.stdin is None:
        raise FileError("cannot read standard input: it is closed")
    if argument is None and file is None and sys.stdin.isatty():
        raise typer.BadParameter(
            "give it as the argument, in a file, or on standard input.", param_hint=name
        )
    try:
        return sys.stdin.buffer.read(), "standard input"
    except OSError as error:
        raise FileError(f"cannot read standard input: {error.strerror}") from error


def decode(data: bytes, where: str) -> str:
    """The text of bytes that must be UTF-8.

    Raises:
        FormatError: they are not; the message names `where` and the offset.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "convert it to UTF-8 first"
        ) from None
