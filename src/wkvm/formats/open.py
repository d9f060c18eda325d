"""Opening a checkpoint by what it contains, whatever it is called."""

from pathlib import Path

from wkvm.errors import FileError, FormatError
from wkvm.formats.pth import PthSource
from wkvm.formats.safetensors import SafetensorsSource, ShardedSource
from wkvm.formats.source import Source

_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # bytes, of a .safetensors file


def open_checkpoint(path: str | Path) -> Source:
    """Open a ``.safetensors`` file, a shard index, a PyTorch ``.pth``, or a folder of these.

    A folder means its ``model.safetensors.index.json``, or else its only ``*.safetensors``.

    Raises:
        FileError: the system refuses.
        FormatError, UnsupportedError: the content is anything else, or damaged; the message says
            what it looks like.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = _choose(path)
        if not path.is_file():  # a pipe would block, a missing file is refused below
            return SafetensorsSource(path)
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"cannot read {path!r}: {error}") from error
    if int.from_bytes(head[:8], "little") <= _MAX_HEADER and head[8:9] == b"{":
        return SafetensorsSource(path)
    if head.startswith(b"PK\x03\x04"):
        return PthSource(path)
    if head.lstrip().startswith(b"{"):
        return ShardedSource(path)
    return SafetensorsSource(path)  # which says what it is instead


def _choose(folder: Path) -> Path:
    """The checkpoint of a folder."""
    if (folder / _INDEX).exists():
        return folder / _INDEX
    candidates = sorted(folder.glob("*.safetensors"))
    if len(candidates) == 1:
        return candidates[0]
    found = ", ".join(candidate.name for candidate in candidates[:4]) or "none"
    raise FormatError(
        f"{folder} is a folder without {_INDEX} and without exactly one .safetensors file "
        f"(found: {found}); name the file"
    )
