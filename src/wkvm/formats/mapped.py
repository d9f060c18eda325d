"""A checkpoint in another program's spelling, seen under canonical names."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from wkvm.errors import FormatError
from wkvm.formats.names import is_lora_matrix, is_vector
from wkvm.formats.source import Bytes, Source, TensorInfo, shown, transposed


class Entry(NamedTuple):
    """Where one canonical tensor comes from; no arithmetic is done on any value.

    Attributes:
        name: canonical.
        shape: canonical.
        origin: the tensor's name in the raw source.
        row: take this row of the origin's first dimension; None: all of it.
        is_transposed: the origin has the two dimensions swapped.
        is_zero: the file has no such tensor, and means zeros, of the origin's type and size.
    """

    name: str
    shape: tuple[int, ...]
    origin: str
    row: int | None = None
    is_transposed: bool = False
    is_zero: bool = False

    def describe(self, origin: str) -> str:
        """In words, where it lies, if `origin` says where its origin lies."""
        if self.is_zero:
            return "zeros, which the file leaves out"
        row = "" if self.row is None else f", row {self.row}"
        return f"{origin}{row}{', transposed' if self.is_transposed else ''}"


class MappedSource(Source):
    """A source whose tensors have other names, and some other layouts, than ours."""

    def __init__(self, raw: Source, kind: str, entries: Iterable[Entry]) -> None:
        """Check every entry against the tensor that it names in `raw`, which it takes over.

        Raises:
            FormatError: an entry does not fit its tensor, or two make the same one.
        """
        self._raw = raw
        self._entries = list(entries)
        self.kind = kind
        self.path, self.files = raw.path, raw.files
        self.identity, self.metadata = raw.identity, raw.metadata
        places = {tensor.name: index for index, tensor in enumerate(raw.tensors)}
        self._places = [places[entry.origin] for entry in self._entries]
        self.tensors = []
        seen: set[str] = set()
        for entry, place in zip(self._entries, self._places, strict=True):
            stored = raw.tensors[place]
            if not _fits(entry, stored.shape):
                raise FormatError(
                    f"{raw.path}: tensor {shown(entry.origin)} has shape {list(stored.shape)}, "
                    f"which does not make {shown(entry.name)} of {list(entry.shape)}"
                )
            if entry.name in seen:
                raise FormatError(
                    f"{raw.path}: tensor {shown(entry.origin)} makes {shown(entry.name)}, which "
                    "another tensor makes too"
                )
            seen.add(entry.name)
            self.tensors.append(TensorInfo(entry.name, stored.dtype, entry.shape))
        self.origins = [
            entry.describe(raw.origins[place])
            for entry, place in zip(self._entries, self._places, strict=True)
        ]

    def read(self, index: int) -> Bytes:
        """The tensor's bytes in canonical layout."""
        entry, place = self._entries[index], self._places[index]
        if entry.is_zero:
            return np.zeros(self.tensors[index].n_bytes, np.uint8)
        stored = self._raw.tensors[place]
        data = self._raw.read(place)
        if entry.row is not None:
            size = self.tensors[index].n_bytes
            data = data[entry.row * size : (entry.row + 1) * size]
        return transposed(data, stored.dtype, stored.shape) if entry.is_transposed else data

    def evict(self, index: int) -> None:
        """Let the system drop the tensor's origin."""
        self._raw.evict(self._places[index])

    def close(self) -> None:
        """Close the origin."""
        self._raw.close()


def _fits(entry: Entry, stored: tuple[int, ...]) -> bool:
    """Whether an entry's tensor can be made of one of shape `stored`."""
    if entry.is_transposed and stored != tuple(reversed(entry.shape)):
        return False
    if entry.row is not None and not (stored and entry.row < stored[0]):
        return False
    return math.prod(entry.shape) == math.prod(stored if entry.row is None else stored[1:])


def entry_of(name: str, tensor: TensorInfo) -> Entry:
    """The canonical `name` from a tensor of a spelling that has LoRA matrices transposed.

    fla, llama.cpp and rwkv.cpp have, and give vectors fewer sides than BlinkDL.
    """
    if is_lora_matrix(name):
        swapped = tuple(reversed(tensor.shape))
        return Entry(name, swapped, tensor.name, is_transposed=True)
    shape = (1, 1, math.prod(tensor.shape)) if is_vector(name) else tensor.shape
    return Entry(name, shape, tensor.name)
