"""The turns of a saved conversation: ``NAME.json`` beside the state ``NAME``."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

from wkvm.errors import FileError, FormatError
from wkvm.formats.write import check_target
from wkvm.text.reasoning import opened, split
from wkvm.text.template import Template, Thinking, Turn

_VERSION = 1
_MAX_BYTES = 8 << 20
_ENDS = ("stop", "eos", "length", "full", "interrupted")
_FIELDS = {"wkvm_conversation", "state", "template", "init_state", "system", "turns"}
_TURN_FIELDS = {"user", "thinking", "said", "end"}


@dataclass(frozen=True)
class Transcript:
    """What was said.

    Attributes:
        state: id of the snapshot at the end.
        template: name of the template that made the prompts.
        init_state: id of the initial state that the conversation began with, or "".
        system: the system text.
        turns: at least one.
    """

    state: str
    template: str
    init_state: str
    system: str
    turns: tuple[Turn, ...]

    def save(self, state_path: str | Path, *, overwrite: bool) -> None:
        """Write the file beside the state's, whole or not at all. Raises FileError."""
        path = beside(state_path)
        check_target(path, overwrite)
        entries = {
            "wkvm_conversation": _VERSION,
            "state": self.state,
            "template": self.template,
            "init_state": self.init_state,
            "system": self.system,
            "turns": [
                {
                    "user": turn.user,
                    "thinking": turn.thinking,
                    # bytes that are not UTF-8 become lone surrogates, which JSON escapes
                    "said": turn.said.decode(errors="surrogateescape"),
                    "end": turn.end,
                }
                for turn in self.turns
            ],
        }
        temporary = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.tmp")
        try:
            with open(temporary, "x", encoding="ascii") as file:
                json.dump(entries, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                temporary.unlink()

    @classmethod
    def load(cls, state_path: str | Path, template: Template) -> Self:
        """Read what ``save`` wrote; a stranger's file, as far as anybody knows.

        Raises:
            FileError: it cannot be read.
            FormatError: it is damaged, or the conversation was led with another template.
        """
        path = beside(state_path)
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
        try:
            entries = _parsed(data)
            name, turns = entries["template"], entries["turns"]
            if name != template.name:
                raise ValueError(
                    f"it was led with the template {name[:80]!r}, and this is {template.name!r}"
                )
            return cls(
                entries["state"],
                name,
                entries["init_state"],
                entries["system"],
                tuple(_turn(number, entry, template) for number, entry in enumerate(turns, 1)),
            )
        except ValueError as error:
            raise FormatError(f"{path} is no conversation to go on with: {error}") from error


def beside(state_path: str | Path) -> Path:
    """The path of the turns that belong to a state's file."""
    path = Path(state_path)
    return path.with_name(path.name + ".json")


def _parsed(data: bytes) -> dict[str, Any]:
    """The entries, each of its type. Raises ValueError, which UnicodeDecodeError is too."""
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    try:
        entries = json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested deeply") from error
    if not isinstance(entries, dict) or entries.keys() != _FIELDS:
        raise ValueError(f"it is not an object of {', '.join(sorted(_FIELDS))}")
    if entries["wkvm_conversation"] != _VERSION:
        raise ValueError(f"it is not of version {_VERSION}")
    for name in ("state", "template", "init_state", "system"):
        _check_text(name, entries[name])
    if not isinstance(entries["turns"], list) or not entries["turns"]:
        raise ValueError("it has no turns")
    return entries


def _turn(number: int, entry: Any, template: Template) -> Turn:
    if not isinstance(entry, dict) or entry.keys() != _TURN_FIELDS:
        raise ValueError(f"turn {number} is not an object of {', '.join(sorted(_TURN_FIELDS))}")
    user, thinking, said, end = (entry[name] for name in ("user", "thinking", "said", "end"))
    _check_text(f"turn {number}: user", user)
    if thinking not in get_args(Thinking) or end not in _ENDS or not isinstance(said, str):
        raise ValueError(f"turn {number} has a wrong thinking, said or end")
    said_bytes = said.encode(errors="surrogateescape")  # UnicodeEncodeError is a ValueError
    reasoning, answer = split(said_bytes, opened(template.prompt("", (), user, thinking)))
    return Turn(user, thinking, said_bytes, reasoning, answer, end)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    value.encode()  # a lone surrogate: UnicodeEncodeError
