"""Opening a checkpoint by what it contains, whatever it is called."""

from pathlib import Path

from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.formats import gguf, rwkvcpp
from wkvm.formats.hf import is_hf, open_hf
from wkvm.formats.safetensors import SafetensorsSource, ShardedSource
from wkvm.formats.source import Source, shown
from wkvm.formats.webrwkv import is_webrwkv, open_webrwkv

#: What a folder stands for, if it holds one of them: as Hugging Face's own loaders choose.
_CHOSEN = ("model.safetensors.index.json", "model.safetensors")
#: Or else the only file in it that ends like this.
_ENDINGS = (".safetensors", ".pth", ".st", ".gguf")

_MAX_HEADER = 100_000_000  # bytes, of a .safetensors file


def open_checkpoint(path: str | Path) -> Source:
    """Open a checkpoint of any kind in docs/formats.md, or the one in a folder.

    A folder means its ``model.safetensors.index.json`` or ``model.safetensors``, or else the only
    file in it with the ending of a checkpoint.

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
    raw = _open_container(path, head)
    try:
        return _canonical(raw)
    except BaseException:
        raw.close()
        raise


def _open_container(path: Path, head: bytes) -> Source:
    """A file of any kind, with the names that it has."""
    if int.from_bytes(head[:8], "little") <= _MAX_HEADER and head[8:9] == b"{":
        return SafetensorsSource(path)
    if head.startswith(b"PK\x03\x04"):
        from wkvm.formats.pth import PthSource  # noqa: PLC0415 -- 8 ms, and few need it

        return PthSource(path)
    if head.startswith(gguf.MAGIC):
        return gguf.GgufSource(path)
    if head.startswith(rwkvcpp.MAGIC):
        return rwkvcpp.RwkvCppSource(path)
    if head.lstrip().startswith(b"{"):
        return ShardedSource(path)
    return SafetensorsSource(path)  # which says what it is instead


def _canonical(raw: Source) -> Source:
    """The same checkpoint under canonical names, whichever it has."""
    if isinstance(raw, gguf.GgufSource):
        return gguf.open_gguf(raw)
    if isinstance(raw, rwkvcpp.RwkvCppSource):
        return rwkvcpp.open_rwkvcpp(raw)
    if is_hf(raw):
        return open_hf(raw)
    if is_webrwkv(raw):
        return open_webrwkv(raw)
    return raw


def _head(path: Path) -> bytes:
    """The first bytes of a file; none of what is no regular file, such as a pipe."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(16)


def _choose(folder: Path) -> Path:
    """The checkpoint of a folder."""
    for name in _CHOSEN:
        if (folder / name).exists():
            return folder / name
    candidates = sorted(path for path in folder.iterdir() if path.name.endswith(_ENDINGS))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise FormatError(
            f"{folder} is a folder without {_CHOSEN[0]}, and without a file that ends in one of "
            f"{', '.join(_ENDINGS)}: name a checkpoint"
        )
    names = ", ".join(shown(candidate.name) for candidate in candidates[:8])
    more = f" and {len(candidates) - 8} more" if len(candidates) > 8 else ""
    raise FormatError(
        f"{folder} is a folder of several checkpoints, {names}{more}: name the one to open"
    )
