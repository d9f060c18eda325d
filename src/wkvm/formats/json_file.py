"""JSON files that lie beside a checkpoint, from the same stranger."""

import json
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from wkvm.errors import FileError, FormatError
from wkvm.formats.source import shown

_MAX_BYTES = 4 << 20


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file of at most 4 MiB.

    Args:
        path: of the file.
        what: it ought to be, for messages, such as "a shard index".

    Raises:
        FileError: the system refuses.
        FormatError: it is larger, no regular file, no JSON object, or has a key twice.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FormatError(f"{path} is not a regular file, and so not {what}")
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > _MAX_BYTES:
        raise FormatError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: not {what}")
    try:
        content = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}; download it again") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path} is not a JSON object, and so not {what}; download it again")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{shown(twice)} appears twice")
    return entries
