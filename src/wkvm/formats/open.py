"""Opening a checkpoint by what it contains, whatever it is called."""

from pathlib import Path

from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.formats.pth import PthSource
from wkvm.formats.safetensors import SafetensorsSource, ShardedSource
from wkvm.formats.source import Source, shown

_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # bytes, of a .safetensors file


def open_checkpoint(path: str | Path) -> Source:
    """Open a ``.safetensors`` file, a shard index, a PyTorch ``.pth``, or a folder of these.

    A folder means its ``model.safetensors.index.json``, or else the only ``*.safetensors`` or
    ``*.pth`` in it.

    Raises:
        FileError: the system refuses.
        InvalidArgumentError: the path holds a zero byte.
        FormatError, UnsupportedError: the content is anything else, or damaged; the message says
            what it looks like.
    """
    path = Path(path)
    if "\0" in str(path):
        raise InvalidArgumentError(f"the path {str(path)!r} holds a zero byte")
    try:
        if path.is_dir():
            path = _choose(path)
        head = _head(path)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if int.from_bytes(head[:8], "little") <= _MAX_HEADER and head[8:9] == b"{":
        return SafetensorsSource(path)
    if head.startswith(b"PK\x03\x04"):
        return PthSource(path)
    if head.lstrip().startswith(b"{"):
        return ShardedSource(path)
    return SafetensorsSource(path)  # which says what it is instead


def _head(path: Path) -> bytes:
    """The first bytes of a file; none of what is no regular file, such as a pipe."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(16)


def _choose(folder: Path) -> Path:
    """The checkpoint of a folder."""
    if (folder / _INDEX).exists():
        return folder / _INDEX
    candidates = sorted(p for kind in ("*.safetensors", "*.pth") for p in folder.glob(kind))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise FormatError(
            f"{folder} is a folder without {_INDEX}, and without a .safetensors or .pth file: name "
            "a checkpoint"
        )
    names = ", ".join(shown(candidate.name) for candidate in candidates[:8])
    more = f" and {len(candidates) - 8} more" if len(candidates) > 8 else ""
    raise FormatError(
        f"{folder} is a folder of several checkpoints, {names}{more}: name the one to open"
    )
