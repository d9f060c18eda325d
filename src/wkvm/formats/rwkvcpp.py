"""rwkv.cpp's ``.bin`` files of RWKV-7.

All of it is little-endian int32: a header of magic, version, n_vocab, n_embd, number of blocks and
type of most tensors; then, up to the end of the file, for each tensor the number of its sides, the
length of its name, its type, its sides (that of a row first), the name and the data. Names are
BlinkDL's, but the vectors x_* of a block are one tensor, and LoRA matrices lie transposed.
https://github.com/RWKV/rwkv.cpp/blob/master/docs/FILE_FORMAT.md
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wkvm.errors import FormatError, UnsupportedError
from wkvm.formats import ggml
from wkvm.formats.ggml import GgmlSource, Scanner, StoredTensor, StoredType
from wkvm.formats.mapped import Entry, MappedSource, entry_of
from wkvm.formats.source import Source, shown

#: 101 changed the layout of the quantised types, before there was RWKV-7.
_VERSIONS = (100, 101)

_TYPES = {
    0: ggml.F32,
    1: ggml.F16,
    2: ggml.Q4_0,
    3: ggml.Q4_1,
    7: ggml.Q5_0,
    8: ggml.Q5_1,
    9: ggml.Q8_0,
}

_BLOCK = re.compile(r"blocks\.(0|[1-9][0-9]{0,5})\..+", re.ASCII)
_FUSED = "att.x_rwkvag"  # [6, 1, D]: x_r, x_w, ...


class _Header(NamedTuple):
    version: int
    n_vocab: int
    n_embd: int
    n_layer: int
    type: int


class RwkvCppSource(GgmlSource):
    """An rwkv.cpp file under the names that it has; ``header`` is what it begins with."""

    header: _Header

    def __init__(self, path: Path) -> None:
        """Read the header and where the tensors lie.

        Raises:
            FileError: the system refuses.
            FormatError: the file is damaged.
            UnsupportedError: another version, or a type that is not read.
        """
        super().__init__(path, "rwkv.cpp")

    def _scan(self, scanner: Scanner) -> list[StoredTensor]:
        scanner.skip(4, "the header")  # which open.py has looked at
        self.header = _Header(*(scanner.number(4, "the header", signed=True) for _ in range(5)))
        if self.header.version not in _VERSIONS:
            raise UnsupportedError(
                f"{self.path} is an rwkv.cpp file of version {self.header.version}; wkvm reads "
                f"{' and '.join(map(str, _VERSIONS))}"
            )
        found: dict[str, StoredTensor] = {}
        while scanner.at < scanner.end:
            if len(found) == ggml.MAX_COUNT:
                raise scanner.damaged(f"it holds more than {ggml.MAX_COUNT} tensors")
            tensor = self._tensor(scanner)
            if tensor.name in found:
                raise scanner.damaged(f"it has two tensors {shown(tensor.name)}")
            found[tensor.name] = tensor
            scanner.skip(tensor.n_bytes, f"tensor {shown(tensor.name)}")
        return list(found.values())

    def _tensor(self, scanner: Scanner) -> StoredTensor:
        what = "the description of a tensor"
        n_sides, n_name, number = (scanner.number(4, what) for _ in range(3))
        sides = [
            scanner.number(4, what) for _ in range(scanner.count(n_sides, "sides of a tensor"))
        ]
        name = scanner.name(n_name, "a tensor's name")
        return scanner.tensor(name, self._stored_type(name, number), sides, scanner.at)

    def _stored_type(self, name: str, number: int) -> StoredType:
        if number not in _TYPES:
            raise UnsupportedError(
                f"{self.path}: tensor {shown(name)} has rwkv.cpp's type number {number}, which "
                f"wkvm does not read; {ggml.GET_ANOTHER}"
            )
        if self.header.version == 100 and _TYPES[number].n_values > 1:
            raise UnsupportedError(
                f"{self.path}: tensor {shown(name)} is {_TYPES[number].name} in a file of version "
                "100, older than RWKV-7; wkvm runs RWKV-7"
            )
        return _TYPES[number]


def open_rwkvcpp(raw: RwkvCppSource) -> Source:
    """An rwkv.cpp file as ours; one of RWKV-4, 5 or 6 keeps its names, by which it is refused.

    Raises:
        FormatError: the header contradicts the tensors, or a tensor has a wrong shape.
    """
    _check_header(raw)
    return MappedSource(raw, raw.kind, _entries(raw))


def _entries(raw: RwkvCppSource) -> Iterator[Entry]:
    for tensor in raw.tensors:
        if _BLOCK.fullmatch(tensor.name) and tensor.name.endswith(f".{_FUSED}"):
            yield from ggml.split(raw.path, tensor, tensor.name.removesuffix("rwkvag"))
        else:
            yield entry_of(tensor.name, tensor)


def _check_header(raw: RwkvCppSource) -> None:
    shapes = {tensor.name: tensor.shape for tensor in raw.tensors}
    embedding = shapes.get("emb.weight", ())
    if len(embedding) != 2:
        raise FormatError(
            f"{raw.path} is an rwkv.cpp file without an emb.weight [n_vocab, n_embd]; download it "
            "again"
        )
    blocks = [int(match[1]) for name in shapes if (match := _BLOCK.fullmatch(name))]
    actual = (*embedding, max(blocks, default=-1) + 1)
    stated = raw.header.n_vocab, raw.header.n_embd, raw.header.n_layer
    for what, said, found in zip(("n_vocab", "n_embd", "n_layer"), stated, actual, strict=True):
        if said != found:
            raise FormatError(
                f"{raw.path}: its header says {what} {said}, but its tensors have {found}; "
                "download it again"
            )
