"""PyTorch ``.pth`` checkpoints, read without PyTorch.

The file is a zip archive: ``<root>/data.pkl``, a pickle that describes the tensors, and
``<root>/data/<key>``, the raw storages that they are views of, all stored uncompressed. A tensor
is read into memory when it is asked for, and only then, so a model of any size is read in the
memory of its largest tensor.
"""

import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from wkvm.errors import FileError, FormatError, OutOfMemoryError
from wkvm.formats.pickled import View, read_state_dict
from wkvm.formats.source import (
    ELEMENT_SIZES,
    Bytes,
    Source,
    TensorInfo,
    canonical_tensors,
    file_identity,
    shown,
)

_MAX_PICKLE_BYTES = 16 << 20
_MAX_READ = 16 << 20  # at once: a directory of some 150,000 members
_MAX_DIMS = 8
_CHUNK = 4 << 20  # bytes that one read of an archive member asks for

#: What ``zipfile`` raises for archives that are damaged or made to harm.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


class _Bounded:
    """A file that refuses to read much at once.

    ``zipfile`` asks for as much as the archive's end record claims its directory to hold.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable

    def read(self, n: int = -1) -> bytes:
        data = b"" if n > _MAX_READ else self._file.read(n if n >= 0 else _MAX_READ + 1)
        if n > _MAX_READ or len(data) > _MAX_READ:
            raise zipfile.BadZipFile("its directory is larger than that of any checkpoint")
        return data


class PthSource(Source):
    """A ``.pth`` that ``torch.save`` wrote, PyTorch 1.6 or newer."""

    kind = "pth"

    def __init__(self, path: Path) -> None:
        """Read the archive's directory and the pickle, and check every view they describe."""
        self.path = path
        self.files = [path]
        self.identity = file_identity(self.files)
        self.metadata = {}
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise FileError(f"cannot open {path}: {error.strerror}") from error
        try:
            self._open_archive()
        except BaseException:
            self._file.close()
            raise

    def _open_archive(self) -> None:
        with self._reading("the archive"):
            self._size = self._file.seek(0, 2)
            self._archive = zipfile.ZipFile(_Bounded(self._file))
            self._members = {member.filename: member for member in self._archive.infolist()}
            if len(self._members) < len(self._archive.infolist()):
                raise zipfile.BadZipFile("two members have the same name")
            self._root = self._find_root()
            self._check_byte_order()
            views = read_state_dict(self._read_small("data.pkl", _MAX_PICKLE_BYTES))
            for name, view in views.items():
                self._check_view(name, view)
        self._views = list(views.values())
        self.tensors = canonical_tensors(
            self.path,
            [TensorInfo(name, view.storage.dtype, view.shape) for name, view in views.items()],
        )
        self.origins = list(views)

    def read(self, index: int) -> Bytes:
        """A fresh copy of the tensor's bytes."""
        name, dtype, shape = self.tensors[index]
        view = self._views[index]
        n = math.prod(shape)
        if n == 0:
            return np.empty(0, np.uint8)
        size = ELEMENT_SIZES[dtype]
        span = _span(view)
        with self._reading(f"tensor {shown(name)}"):
            data = self._read_storage(view, view.offset * size, span * size)
        if _is_dense(view):
            return data
        steps = tuple(stride * size for stride in view.strides)
        strided = np.lib.stride_tricks.as_strided(data.view(f"V{size}"), shape, steps)
        return np.ascontiguousarray(strided).reshape(-1).view(np.uint8)

    def evict(self, index: int) -> None:
        """Nothing to do: ``read`` keeps nothing."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turns what goes wrong in the block into our errors, with the path."""
        try:
            yield
        except FormatError as error:
            raise FormatError(f"{self.path}: {error}") from error
        except _ZIP_ERRORS as error:
            raise FormatError(
                f"{self.path}: {what} is damaged: {error}; download the file again"
            ) from error
        except OSError as error:
            raise FileError(f"cannot read {what} of {self.path}: {error.strerror}") from error
        except MemoryError as error:
            raise OutOfMemoryError(f"no memory for {what} of {self.path}") from error

    def _find_root(self) -> str:
        """What every member's name begins with: the part before ``data.pkl``."""
        roots = [
            name.removesuffix("data.pkl")
            for name in self._members
            if name == "data.pkl" or name.endswith("/data.pkl")
        ]
        if len(roots) != 1:
            raise FormatError(
                "this zip file is not a PyTorch checkpoint: it does not hold one data.pkl"
            )
        return roots[0]

    def _check_byte_order(self) -> None:
        if self._root + "byteorder" not in self._members:
            return  # PyTorch before 2.1, which wrote the machine's order: little-endian
        order = self._read_small("byteorder", 16)
        if order != b"little":
            raise FormatError(f"its byte order is {order!r}; save it on a little-endian machine")

    def _find(self, name: str) -> zipfile.ZipInfo:
        """A member that is there, lies within the file, and is stored as it is."""
        member = self._members.get(self._root + name)
        if member is None:
            raise FormatError(f"{shown(name)} is missing in it; download the file again")
        if member.compress_type != zipfile.ZIP_STORED:
            raise FormatError(f"{shown(name)} is compressed; load and save the file with PyTorch")
        if member.file_size != member.compress_size or (
            member.header_offset + member.file_size > self._size
        ):
            raise FormatError(
                f"{shown(name)} of {member.file_size} bytes does not fit the file of {self._size}; "
                "download the file again"
            )
        return member

    def _read_small(self, name: str, limit: int) -> bytes:
        """All bytes of a member, at most `limit`."""
        member = self._find(name)
        if member.file_size > limit:
            raise FormatError(f"{name} takes {member.file_size} bytes, more than {limit}")
        with self._archive.open(member) as file:
            return file.read()

    def _check_view(self, name: str, view: View) -> None:
        """The view lies within its storage, and the storage within the file."""
        where = f"tensor {shown(name)}"
        dtype, key, n_stored = view.storage
        if len(view.shape) > _MAX_DIMS or len(view.shape) != len(view.strides):
            raise FormatError(
                f"{where} has {len(view.shape)} dimensions and {len(view.strides)} strides; as "
                f"many of each are expected, and at most {_MAX_DIMS}"
            )
        n = math.prod(view.shape)
        if n > n_stored or (n > 0 and view.offset + _span(view) > n_stored):
            raise FormatError(
                f"{where} of shape {list(view.shape)} reaches beyond its storage of {n_stored} "
                "elements; download the file again"
            )
        n_bytes = n_stored * ELEMENT_SIZES[dtype]
        if self._find(f"data/{key}").file_size != n_bytes:
            raise FormatError(
                f"{where}: its storage data/{shown(key)} does not have the {n_bytes} bytes that "
                "the pickle promises; download the file again"
            )

    def _read_storage(self, view: View, begin: int, n_bytes: int) -> Bytes:
        """`n_bytes` bytes of the view's storage, from byte `begin`; the checksum is compared if
        the storage is read to its end."""
        data = np.empty(n_bytes, np.uint8)
        with self._archive.open(self._find(f"data/{view.storage.key}")) as file:
            if begin:  # a seek, even to where it is, may turn the checksum off
                file.seek(begin)
            at = 0
            while at < n_bytes:
                chunk = file.read(min(_CHUNK, n_bytes - at))
                if not chunk:
                    raise EOFError(f"it ends after {at} of {n_bytes} bytes")
                data[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
                at += len(chunk)
        return data


def _is_dense(view: View) -> bool:
    """Whether the view's elements lie in order and without gaps."""
    stride = 1
    for length, actual in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if length != 1 and actual != stride:
            return False
        stride *= length
    return True


def _span(view: View) -> int:
    """Elements from the first to the last one of a view that is not empty."""
    return 1 + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
