"""Our own ``.safetensors`` files: the same content gives the same bytes.

Names and metadata are sorted, the data begins at a multiple of 64 bytes, and so does every tensor
of a converted file. The format allows no gaps, so there a tensor whose size is not a multiple of 64
is followed by one that fills the gap: ``__pad.N``, U8, shorter than 64 bytes, zeros. The native
reader does not list those.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from numpy.typing import NDArray

from wkvm.errors import FileError, InvalidArgumentError
from wkvm.formats.source import TensorInfo

_ALIGN = 64


class OutTensor(NamedTuple):
    """A tensor to write; `read` gives its data, little-endian, when its turn comes."""

    info: TensorInfo
    read: Callable[[], NDArray[Any]]


def write_safetensors(
    path: str | Path,
    tensors: Iterable[OutTensor],
    metadata: Mapping[str, str],
    *,
    padded: bool = True,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write one ``.safetensors`` file, whole or not at all.

    The bytes go to a temporary file in the same folder, which is synced and then renamed.

    Args:
        path: the file to make.
        tensors: in any order; the data of one is held at a time.
        metadata: entries of ``__metadata__``.
        padded: let every tensor begin at a multiple of 64 bytes; False for other programs' eyes, to
            which the tensors in the gaps would be tensors of the model.
        overwrite: replace a file that exists.
        progress: called with (bytes written, bytes in all) after each tensor.

    Raises:
        FileError: the system refuses (a full disk, no permission), or the file exists.
        InvalidArgumentError: two tensors share a name, a tensor's data has the wrong size, or the
            path holds a zero byte.
    """
    path = Path(path)
    check_target(path, overwrite)
    ordered = sorted(tensors, key=lambda tensor: tensor.info.name)
    align = _ALIGN if padded else 1
    header = _header([tensor.info for tensor in ordered], metadata, align)
    temporary = path.parent / f".{path.name[:200]}.{os.urandom(4).hex()}.tmp"
    try:
        with _create(temporary) as file:
            file.write(header)
            _write_data(file, ordered, align, progress)
            file.flush()
            os.fsync(file.fileno())
        check_target(path, overwrite)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a path that cannot be written.

    Raises:
        FileError: a file is in the way and `overwrite` does not allow to replace it.
        InvalidArgumentError: the path holds a zero byte.
    """
    if "\0" in str(path):
        raise InvalidArgumentError(f"the path {str(path)!r} holds a zero byte")
    if not overwrite and os.path.lexists(path):
        raise FileError(
            f"{path} exists: name another file, or allow to replace it (overwrite=True, --force)"
        )


def _header(infos: list[TensorInfo], metadata: Mapping[str, str], align: int) -> bytes:
    """Everything in front of the data; its length is a multiple of 64.

    align: of the tensors after the first.
    """
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    begin = 0
    n_pads = 0
    for i, info in enumerate(infos):
        if info.name in entries or info.name.startswith("__"):
            raise InvalidArgumentError(f"tensor name {info.name!r} is reserved or used twice")
        entries[info.name] = _entry(info, begin)
        begin += info.n_bytes
        if i + 1 < len(infos) and (gap := -begin % align):
            entries[f"__pad.{n_pads}"] = _entry(TensorInfo("", "u8", (gap,)), begin)
            begin += gap
            n_pads += 1
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _entry(info: TensorInfo, begin: int) -> dict[str, Any]:
    return {
        "dtype": info.dtype.upper(),
        "shape": list(info.shape),
        "data_offsets": [begin, begin + info.n_bytes],
    }


def _write_data(
    file: IO[bytes],
    tensors: list[OutTensor],
    align: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    total = sum(info.n_bytes for info, _ in tensors)
    done = 0
    for i, (info, read) in enumerate(tensors):
        data = read()
        if data.nbytes != info.n_bytes or not data.flags.c_contiguous:
            raise InvalidArgumentError(
                f"tensor {info.name}: {data.nbytes} bytes of data, {info.n_bytes} expected"
            )
        file.write(data.data)
        del data  # before the next one is read
        if i + 1 < len(tensors):
            file.write(bytes(-info.n_bytes % align))
        done += info.n_bytes
        if progress is not None:
            progress(done, total)


def _create(path: Path) -> IO[bytes]:
    """A new file, with the permissions that the user's umask gives."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
