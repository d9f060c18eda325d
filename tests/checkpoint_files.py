"""Reading and writing checkpoints for tests, apart from the code under test and without torch."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from reference import Weights

#: Name in safetensors, bytes per element.
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U32": 4, "I8": 1, "U8": 1}

#: name -> (type, shape, bytes): a checkpoint as it lies on disk.
Raw = dict[str, tuple[str, tuple[int, ...], bytes]]


def to_float64(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    if dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64).reshape(shape)
    stored = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype])
    return stored.astype(np.float64).reshape(shape)


def read_safetensors(path: Path) -> Raw:
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {
        name: (
            entry["dtype"],
            tuple(entry["shape"]),
            data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def write_safetensors(path: Path, tensors: Raw, metadata: dict[str, str] | None = None) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(data for _, _, data in tensors.values())


def write_sharded(folder: Path, tensors: Raw, n_shards: int) -> Path:
    """The same checkpoint as `n_shards` files and an index; returns the index."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    weight_map = {}
    for i in range(n_shards):
        shard = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::n_shards]}
        write_safetensors(folder / shard, part)
        weight_map |= dict.fromkeys(part, shard)
    index = folder / "model.safetensors.index.json"
    total = sum(len(data) for _, _, data in tensors.values())
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return index


STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16"}


class _PthUnpickler(pickle.Unpickler):
    """Reads our own fixtures' pickles: a dict of tensors over raw storages, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, stride, *_: (storage, offset, shape, stride)
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, _ = pid
        return dtype, key


def read_pth(path: Path) -> Raw:
    tensors: Raw = {}
    with zipfile.ZipFile(path) as archive:
        root = next(n for n in archive.namelist() if n.endswith("/data.pkl"))[: -len("data.pkl")]
        with archive.open(root + "data.pkl") as file:
            content = _PthUnpickler(file).load()
        for name, ((dtype, key), offset, shape, stride) in content.items():
            dense = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
            assert stride == dense, f"{name}: a strided view"
            begin, n_bytes = offset * SIZES[dtype], int(np.prod(shape)) * SIZES[dtype]
            data = archive.read(f"{root}data/{key}")[begin : begin + n_bytes]
            tensors[name] = (dtype, tuple(shape), data)
    return tensors


def read(path: Path) -> Raw:
    return read_pth(path) if path.suffix == ".pth" else read_safetensors(path)


def weights(path: Path) -> Weights:
    """The tensors of a canonical checkpoint as float64."""
    return {name: to_float64(*raw) for name, raw in read(path).items()}


def write_edited(source: Path, target: Path, edit: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """Writes a float32 copy of a checkpoint after `edit` has changed its arrays; returns it."""
    arrays = {name: to_float64(*raw).astype("<f4") for name, raw in read(source).items()}
    edit(arrays)
    write_safetensors(target, {n: ("F32", a.shape, a.tobytes()) for n, a in arrays.items()})
    return target


def equal_keys(arrays: dict[str, np.ndarray]) -> None:
    """Gives every token of an RWKV-X model the same attention key, of full float32 precision.

    So all block means are equal if their sums are rounded alike, and every choice of blocks is a
    tie.
    """
    rng = np.random.default_rng(0)
    for name, array in arrays.items():
        if name.startswith("moba.") and name.endswith("ln1.weight"):
            array[0] = 0
        elif name.startswith("moba.") and name.endswith("ln1.bias"):
            array[0] = 1
        elif name.startswith("moba.") and name.endswith("att.key.weight"):
            array[:, 1:] = 0
            array[:, 0] = rng.standard_normal(len(array))
