"""Opening a checkpoint by what it contains, whatever it is called.

Readers that few need are imported when they are: together they would take as long as a model does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.formats.hf import is_hf, open_hf
from wkvm.formats.safetensors import SafetensorsSource, ShardedSource
from wkvm.formats.source import Source, shown
from wkvm.formats.webrwkv import is_webrwkv, open_webrwkv

if TYPE_CHECKING:
    from wkvm.formats.adapter import Adapter

#: What a folder stands for, if it holds one of them: as Hugging Face's own loaders choose.
_CHOSEN = ("model.safetensors.index.json", "model.safetensors")
#: Or else the only file in it that ends like this.
_ENDINGS = (".safetensors", ".pth", ".st", ".gguf")

#: What files of llama.cpp and of rwkv.cpp begin with.
_GGUF = b"GGUF"
_RWKVCPP = (0x67676D66).to_bytes(4, "little")

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
    raw, canonical = _open_container(path, head)
    try:
        return canonical(raw)
    except BaseException:
        raw.close()
        raise


def open_model(path: str | Path, adapter: "Adapter | None" = None) -> Source:
    """``open_checkpoint``, with an adapter merged in if one is given.

    Raises:
        FileError, FormatError, UnsupportedError, InvalidArgumentError: as ``open_checkpoint`` and
            ``MergedSource``.
    """
    source = open_checkpoint(path)
    if adapter is None:
        return source
    from wkvm.formats.merged import MergedSource  # noqa: PLC0415

    try:
        return MergedSource(source, adapter)
    except BaseException:
        source.close()
        raise


def _open_container(path: Path, head: bytes) -> tuple[Source, Callable[[Any], Source]]:
    """A file of any kind with the names that it has, and what gives it canonical ones."""
    if int.from_bytes(head[:8], "little") <= _MAX_HEADER and head[8:9] == b"{":
        return SafetensorsSource(path), _canonical
    if head.startswith(b"PK\x03\x04"):
        from wkvm.formats.pth import PthSource  # noqa: PLC0415

        return PthSource(path), _canonical
    if head.startswith(_GGUF):
        from wkvm.formats.gguf import GgufSource, open_gguf  # noqa: PLC0415

        return GgufSource(path), open_gguf
    if head.startswith(_RWKVCPP):
        from wkvm.formats.rwkvcpp import RwkvCppSource, open_rwkvcpp  # noqa: PLC0415

        return RwkvCppSource(path), open_rwkvcpp
    if head.lstrip().startswith(b"{"):
        return ShardedSource(path), _canonical
    return SafetensorsSource(path), _canonical  # which says what it is instead


def _canonical(raw: Source) -> Source:
    """The same checkpoint under canonical names, whichever it has."""
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
