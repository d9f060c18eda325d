"""``.safetensors`` checkpoints: one file, or several behind an index."""

from collections import Counter
from pathlib import Path

from wkvm._engine import SafetensorsFile
from wkvm.errors import FileError, FormatError
from wkvm.formats.json_file import read_json
from wkvm.formats.source import (
    Bytes,
    Source,
    TensorInfo,
    canonical_tensors,
    file_identity,
    shown,
)

#: Metadata entry that marks a file made by ``wkvm convert``.
PACKED_KEY = "wkvm.packed"


class SafetensorsSource(Source):
    """One ``.safetensors`` file, mapped; tensors are read in place."""

    def __init__(self, path: Path) -> None:
        """Map the file and check its header."""
        self.path = path
        self.files = [path]
        self.identity = file_identity(self.files)
        self._file: SafetensorsFile | None = SafetensorsFile(path)
        self.metadata = self._file.metadata()
        self.kind = "wkvm packed" if PACKED_KEY in self.metadata else "safetensors"
        found = [TensorInfo(*t) for t in self._file.tensors()]
        self.tensors = canonical_tensors(path, found)
        self.origins = [tensor.name for tensor in found]

    def read(self, index: int) -> Bytes:
        """The tensor's bytes in the map, read-only; they stay valid after ``close``."""
        return self._open_file().read(index)

    def evict(self, index: int) -> None:
        """Drop the tensor's pages from this process; reading brings them back."""
        self._open_file().evict(index)

    def close(self) -> None:
        """Let go of the map, as soon as no array that ``read`` returned is in use."""
        self._file = None

    def _open_file(self) -> SafetensorsFile:
        if self._file is None:
            raise FileError(f"{self.path} is closed")
        return self._file


class ShardedSource(Source):
    """Several ``.safetensors`` files and the JSON index that says which tensor lies where."""

    kind = "sharded safetensors"

    def __init__(self, path: Path) -> None:
        """Map every shard of the index `path` and check that both tell the same."""
        weight_map = read_weight_map(path)
        names = sorted(set(weight_map.values()))
        self.path = path
        self.files = [path.parent / name for name in names]
        self.identity = file_identity(self.files)
        self._shards = [SafetensorsFile(file) for file in self.files]
        self._places: list[tuple[int, int]] = []  # of each tensor: shard, index within it
        found: list[TensorInfo] = []
        for number, (name, shard) in enumerate(zip(names, self._shards, strict=True)):
            for index, described in enumerate(shard.tensors()):
                tensor = TensorInfo(*described)
                if weight_map.get(tensor.name) != name:
                    raise FormatError(
                        f"{path}: {name} holds tensor {shown(tensor.name)}, which the index does "
                        "not expect there; download the index and the shards again"
                    )
                found.append(tensor)
                self._places.append((number, index))
        missing = weight_map.keys() - {tensor.name for tensor in found}
        if missing:
            name = min(missing)
            raise FormatError(
                f"{path}: tensor {shown(name)} is not in {weight_map[name]}, where the index "
                "expects it; download the index and the shards again"
            )
        self.tensors = canonical_tensors(path, found)
        self.origins = [f"{tensor.name} in {weight_map[tensor.name]}" for tensor in found]
        entries = Counter(entry for shard in self._shards for entry in shard.metadata().items())
        self.metadata = dict(entry for entry, n in entries.items() if n == len(self._shards))

    def read(self, index: int) -> Bytes:
        """The tensor's bytes in its shard's map, read-only."""
        shard, place = self._find(index)
        return shard.read(place)

    def evict(self, index: int) -> None:
        """Drop the tensor's pages from this process; reading brings them back."""
        shard, place = self._find(index)
        shard.evict(place)

    def close(self) -> None:
        """Let go of the maps, as soon as no array that ``read`` returned is in use."""
        self._shards = []

    def _find(self, index: int) -> tuple[SafetensorsFile, int]:
        if not self._shards:
            raise FileError(f"{self.path} is closed")
        shard, place = self._places[index]
        return self._shards[shard], place


def read_weight_map(path: Path) -> dict[str, str]:
    """The ``weight_map`` of an index: tensor name -> plain name of the shard beside the index.

    Raises:
        FileError: the system refuses.
        FormatError: it is no index, or names a shard in any other way.
    """
    weight_map = read_json(path, "a shard index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(
            f"{path} has no weight_map: it is not the index of a sharded checkpoint "
            "(model.safetensors.index.json)"
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise FormatError(f"{path}: weight_map gives tensor {shown(name)} no file name")
    for shard in sorted(set(weight_map.values())):
        _check_shard_name(path, shard)
    return weight_map


def _check_shard_name(index: Path, name: str) -> None:
    """Refuse a shard that is not a plain file name: the index comes from a stranger."""
    if (
        not name.endswith(".safetensors")
        or len(name) > 255
        or any(c in "/\\:" or not c.isprintable() for c in name)
    ):
        raise FormatError(
            f"{index}: the shard name {shown(name)} is not the plain name of a .safetensors file "
            "beside the index"
        )
