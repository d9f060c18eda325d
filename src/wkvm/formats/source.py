"""What every kind of checkpoint looks like once it is open."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from wkvm.errors import FileError, FormatError
from wkvm.formats.names import canonical_name

#: Bytes of one element, by the name of its type.
ELEMENT_SIZES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u64": 8,
    "u32": 4,
    "u16": 2,
    "u8": 1,
    "bool": 1,
}

#: (device, inode, size, mtime in ns) of every file of a checkpoint.
Identity = tuple[tuple[int, int, int, int], ...]

#: The bytes of one tensor, little-endian and C-contiguous.
Bytes = NDArray[np.uint8]


class TensorInfo(NamedTuple):
    """Name, element type (a key of ``ELEMENT_SIZES``) and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Size of the tensor's data in bytes."""
        return ELEMENT_SIZES[self.dtype] * math.prod(self.shape)


class Source(ABC):
    """An open checkpoint: its tensors under canonical names, read one at a time.

    Attributes:
        path: the file or index that was opened.
        kind: what it is, in words: ``"safetensors"``, ``"sharded safetensors"``, ``"pth"``, or the
            like behind whose spelling it is; ``"wkvm packed"`` for a converted file.
        files: every file that holds tensors.
        identity: of those files, as they were when they were opened.
        tensors: descriptions, in the order in which reading is cheapest.
        origins: in words, where in the files each of them lies.
        metadata: what the file says about itself; empty for a ``.pth``.
    """

    path: Path
    kind: str
    files: list[Path]
    identity: Identity
    tensors: list[TensorInfo]
    origins: list[str]
    metadata: dict[str, str]

    @abstractmethod
    def read(self, index: int) -> Bytes:
        """The bytes of ``tensors[index]``, uint8 [n_bytes].

        Raises:
            FormatError, FileError: the file does not hold what it promised.
        """

    @abstractmethod
    def evict(self, index: int) -> None:
        """Let the system drop what it holds in memory of ``tensors[index]``."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; nothing can be read afterwards."""

    def check_unchanged(self) -> None:
        """Raise FileError if a file was replaced or rewritten since it was opened."""
        if file_identity(self.files) != self.identity:
            raise FileError(f"{self.path} changed while it was in use; open it again")

    def __enter__(self) -> Self:
        """The source itself; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def file_identity(files: Sequence[Path]) -> Identity:
    """What changes when a file is replaced or rewritten.

    A rewrite in place, of the same size and within the resolution of the file system's clock, goes
    unnoticed.
    """
    try:
        stats = [os.stat(file) for file in files]
    except OSError as error:
        raise FileError(f"cannot read {error.filename}: {error.strerror}") from error
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)


def canonical_tensors(path: Path, tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    """The tensors under their canonical names.

    Raises:
        FormatError: two of them share one.
    """
    renamed = [tensor._replace(name=canonical_name(tensor.name)) for tensor in tensors]
    seen: set[str] = set()
    for tensor in renamed:
        if tensor.name in seen:
            raise FormatError(f"{path}: tensor {shown(tensor.name)} appears twice, under an alias")
        seen.add(tensor.name)
    return renamed


def transposed(data: Bytes, dtype: str, shape: tuple[int, ...]) -> Bytes:
    """The bytes of a matrix of `shape` with its two dimensions swapped."""
    items = data.view(f"V{ELEMENT_SIZES[dtype]}").reshape(shape)
    return np.ascontiguousarray(items.T).reshape(-1).view(np.uint8)


def shown(name: object) -> str:
    """A name from a file as one short line of a message."""
    text = "".join(c if c.isprintable() else "?" for c in str(name)[:120])
    return text + "..." if len(str(name)) > 120 else text
