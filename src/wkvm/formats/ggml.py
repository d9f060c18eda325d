"""What GGUF and rwkv.cpp's files share: tensors in one file, stored as ggml stores numbers.

ggml's quantised types cut a row into blocks of 32 values. With ``d`` and ``m``, float16 and one of
each per block, and whole numbers ``q``, one per value:

    Q4_0   d * (q - 8)     q of 4 bits        Q4_1   d * q + m     q of 4 bits
    Q5_0   d * (q - 16)    q of 5 bits        Q5_1   d * q + m     q of 5 bits
    Q8_0   d * q           q of 8 bits, signed

A product of a float16 and 8 bits is exact in float32. ``d * q + m`` need not be, and is refused
where it is not: what such a file means would depend on how a program rounds.
"""

import math
import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wkvm.errors import FileError, FormatError, OutOfMemoryError, UnsupportedError
from wkvm.formats.mapped import Entry
from wkvm.formats.source import Bytes, Source, TensorInfo, file_identity, shown

MAX_COUNT = 65_536  # of anything; a model of 1000 blocks has 30,000 tensors
_MAX_NAME = 65_535  # bytes
_MAX_DIMS = 4

_BLOCK = 32  # values
_STRETCH = 32_768  # blocks that are unpacked at a time

_GATES = "rwkvag"  # the order of the vectors x_r, x_w, ... where they are one tensor


class StoredType(NamedTuple):
    """One of ggml's types that wkvm reads.

    Attributes:
        name: ggml's.
        dtype: the one in which it is read, a key of ``ELEMENT_SIZES``.
        n_values: that one block holds, side by side in a row; 1: no blocks.
        n_bytes: of a block.
    """

    name: str
    dtype: str
    n_values: int
    n_bytes: int


F32 = StoredType("F32", "f32", 1, 4)
F16 = StoredType("F16", "f16", 1, 2)
BF16 = StoredType("BF16", "bf16", 1, 2)
Q4_0 = StoredType("Q4_0", "f32", _BLOCK, 2 + 16)
Q4_1 = StoredType("Q4_1", "f32", _BLOCK, 2 + 2 + 16)
Q5_0 = StoredType("Q5_0", "f32", _BLOCK, 2 + 4 + 16)
Q5_1 = StoredType("Q5_1", "f32", _BLOCK, 2 + 2 + 4 + 16)
Q8_0 = StoredType("Q8_0", "f32", _BLOCK, 2 + 32)

#: What to do about a type that wkvm does not read.
GET_ANOTHER = "get the model in F32, F16, BF16 or Q8_0"


class StoredTensor(NamedTuple):
    """One tensor of a file: its data are whole blocks from byte `begin` on."""

    name: str
    type: StoredType
    shape: tuple[int, ...]
    begin: int

    @property
    def n_bytes(self) -> int:
        """Size of its data in the file."""
        return math.prod(self.shape) // self.type.n_values * self.type.n_bytes


class Scanner:
    """A file read from its beginning on, which says what is wrong where it ends too early."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            FileError: the system refuses.
        """
        self.path = path
        with self.reading():
            self.file = path.open("rb")
            self.size = os.fstat(self.file.fileno()).st_size
        #: Byte to read next, and the one not to read beyond.
        self.at, self.end = 0, self.size

    def take(self, n: int, what: str) -> bytes:
        """The next `n` bytes, which are `what`; no memory is taken for what is not there."""
        self._check(n, what)
        with self.reading():
            data = self.file.read(n)
        if len(data) != n:
            raise self.damaged(f"it was cut off within {what}, while it was read")
        self.at += n
        return data

    def skip(self, n: int, what: str) -> None:
        """Go on after the next `n` bytes."""
        self._check(n, what)
        with self.reading():
            self.file.seek(n, os.SEEK_CUR)
        self.at += n

    def skip_texts(self, n: int, what: str) -> None:
        """Go on after `n` texts, each behind its length in 8 bytes."""
        self._check(8 * n, what)
        with self.reading():
            for _ in range(n):
                length = int.from_bytes(self.file.read(8), "little")
                self.at += 8
                self._check(length, what)
                self.file.seek(length, os.SEEK_CUR)
                self.at += length

    def number(self, n_bytes: int, what: str, *, signed: bool = False) -> int:
        """The next little-endian integer."""
        return int.from_bytes(self.take(n_bytes, what), "little", signed=signed)

    def name(self, n: int, what: str) -> str:
        """A name of `n` bytes of UTF-8."""
        if n > _MAX_NAME:
            raise self.damaged(f"{what} has {n} bytes")
        try:
            return self.take(n, what).decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8") from None

    def count(self, n: int, what: str) -> int:
        """A count of `what`, if a model can have so many."""
        if n > MAX_COUNT:
            raise self.damaged(f"it claims {n} {what}, more than {MAX_COUNT}")
        return n

    def tensor(self, name: str, kind: StoredType, sides: list[int], begin: int) -> StoredTensor:
        """One tensor of the `sides` that the file gives, which lies within the file.

        Args:
            name: of the tensor.
            kind: its type.
            sides: the shape, in ggml's order: that of the elements in a row first.
            begin: byte at which its data begin.
        """
        where = f"tensor {shown(name)}"
        if not 1 <= len(sides) <= _MAX_DIMS or min(sides) < 1:
            raise self.damaged(f"{where} has the shape {_short(sides)}")
        if sides[0] % kind.n_values:
            raise self.damaged(
                f"{where} has rows of {sides[0]}, which are no whole blocks of {kind.name}"
            )
        stored = StoredTensor(name, kind, tuple(reversed(sides)), begin)
        if begin + stored.n_bytes > self.size:
            raise self.damaged(
                f"{where} of shape {_short(stored.shape)} in {kind.name} would end beyond the end "
                f"of the file, at {self.size} bytes"
            )
        return stored

    def damaged(self, how: str) -> FormatError:
        """The error that says so."""
        return FormatError(f"{self.path}: {how}; download the file again")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turns what the system refuses in the block into our errors, with the path."""
        try:
            yield
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error
        except MemoryError as error:
            raise OutOfMemoryError(f"no memory for a tensor of {self.path}") from error

    def _check(self, n: int, what: str) -> None:
        if n > self.end - self.at:
            raise self.damaged(f"{what} would reach beyond byte {self.end}, where it has to end")


class GgmlSource(Source):
    """One file of tensors as ggml stores them, under the names that it has.

    A tensor is read into memory when it is asked for, and unpacked if it is quantised.
    """

    def __init__(self, path: Path, kind: str) -> None:
        """Read where the tensors lie.

        Raises:
            FileError: the system refuses.
            FormatError: the file is damaged.
            UnsupportedError: it is of another version, or holds types that wkvm does not read.
        """
        self.path, self.files, self.kind = path, [path], kind
        self.identity = file_identity(self.files)
        self.metadata = {}
        self._scanner = Scanner(path)
        try:
            self._stored = self._scan(self._scanner)
        except BaseException:
            self.close()
            raise
        self.tensors = [TensorInfo(t.name, t.type.dtype, t.shape) for t in self._stored]
        self.origins = [
            t.name if t.type.n_values == 1 else f"{t.name}, {t.type.name}" for t in self._stored
        ]

    @abstractmethod
    def _scan(self, scanner: Scanner) -> list[StoredTensor]:
        """The tensors of a file, in the order in which they lie; no two have the same name."""

    def read(self, index: int) -> Bytes:
        """A fresh copy of the tensor's bytes, unpacked."""
        stored, scanner = self._stored[index], self._scanner
        with scanner.reading():
            data = np.empty(stored.n_bytes, np.uint8)
            scanner.file.seek(stored.begin)
            if scanner.file.readinto(data.data) != data.size:
                raise scanner.damaged(f"it ends within tensor {shown(stored.name)}")
            if stored.type.n_values == 1:
                return data
            return _unpacked(data, stored, self.path).view(np.uint8)

    def evict(self, index: int) -> None:
        """Nothing to do: ``read`` keeps nothing."""

    def close(self) -> None:
        """Close the file."""
        self._scanner.file.close()


def split(path: Path, fused: TensorInfo, prefix: str) -> Iterator[Entry]:
    """The vectors x_r, x_w, ... of a tensor [6, ..., D]; `prefix` is what their names begin with.

    Raises:
        FormatError: it has another shape.
    """
    n, *rest = fused.shape
    if n != len(_GATES) or not rest:
        raise FormatError(
            f"{path}: tensor {shown(fused.name)} has shape {list(fused.shape)}; "
            f"[{len(_GATES)}, n_embd] is expected"
        )
    for row, gate in enumerate(_GATES):
        yield Entry(prefix + gate, (1, 1, math.prod(rest)), fused.name, row)


def _unpacked(data: Bytes, stored: StoredTensor, path: Path) -> NDArray[np.float32]:
    """The float32 values of a quantised tensor's blocks."""
    blocks = data.reshape(-1, stored.type.n_bytes)
    values = np.empty((len(blocks), _BLOCK), "<f4")
    for begin in range(0, len(blocks), _STRETCH):
        part = blocks[begin : begin + _STRETCH]
        values[begin : begin + _STRETCH] = _values(part, stored, path)
    return values.reshape(-1)


def _values(blocks: Bytes, stored: StoredTensor, path: Path) -> NDArray[np.float32]:
    """The values [n, 32] of blocks [n, bytes]."""
    has_minimum = stored.type in (Q4_1, Q5_1)
    factors = blocks[:, : 4 if has_minimum else 2].copy().view("<f2")
    if not np.isfinite(factors).all():
        raise FormatError(
            f"{path}: tensor {shown(stored.name)} has a block of {stored.type.name} whose scale is "
            "not finite; download the file again"
        )
    levels = _levels(blocks[:, factors.shape[1] * 2 :], stored.type)
    if not has_minimum:
        values: NDArray[np.float32] = np.multiply(factors, levels, dtype="<f4")
        return values
    exact = factors[:, :1].astype("<f8") * levels + factors[:, 1:].astype("<f8")
    values = exact.astype("<f4")
    if not (values == exact).all():
        raise UnsupportedError(
            f"{path}: tensor {shown(stored.name)} in {stored.type.name} has a value d * q + m that "
            f"is no float32 number, so that programs round it differently; {GET_ANOTHER}"
        )
    return values


def _levels(blocks: Bytes, kind: StoredType) -> NDArray[np.int8]:
    """The whole numbers [n, 32] of blocks without their factors, an offset subtracted."""
    if kind == Q8_0:
        return blocks.view(np.int8)
    halves = blocks[:, -_BLOCK // 2 :]  # the lower halves of the bytes are values 0 to 15
    levels: NDArray[np.int8] = np.concatenate((halves & 15, halves >> 4), axis=1).view(np.int8)
    if kind in (Q5_0, Q5_1):
        fifth = np.unpackbits(blocks[:, :4], axis=1, bitorder="little")
        levels |= fifth.view(np.int8) << 4
    levels -= {Q4_0: 8, Q5_0: 16}.get(kind, 0)
    return levels


def _short(sides: list[int] | tuple[int, ...]) -> str:
    """A shape as a short part of a message."""
    return shown(list(sides[: _MAX_DIMS + 1]))
