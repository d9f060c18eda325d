"""Random RWKV-7 checkpoints of the official shapes, as .safetensors and as BlinkDL .pth.

    python bench/checkpoints.py 0.4B --dtype fp16

Every value is exact in float16 and in bfloat16, so the files of one shape hold the same model,
whatever their type. A tensor's values depend on the seed and its name only. Needs NumPy alone.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEED = 7
CHUNK = 1 << 22  # values that are drawn at a time: bounds the memory of a writer
HEAD_SIZE = 64

Draw = Callable[[np.random.Generator, int], NDArray[np.float32]]


@dataclass(frozen=True)
class Shape:
    """Sizes of an RWKV-7 model; `ranks` are those of the LoRA pairs w, a, v, g."""

    n_layer: int
    n_embd: int
    ranks: tuple[int, int, int, int]
    n_vocab: int = 65536

    @property
    def n_ffn(self) -> int:
        return 4 * self.n_embd

    @property
    def n_head(self) -> int:
        return self.n_embd // HEAD_SIZE


SHAPES = {
    "smoke": Shape(3, 128, (32, 32, 16, 64), n_vocab=1024),  # tries a bench in a second
    "0.1B": Shape(12, 768, (64, 64, 32, 128)),
    "0.4B": Shape(24, 1024, (64, 64, 32, 128)),
    "1.5B": Shape(24, 2048, (96, 96, 64, 256)),
}


@dataclass(frozen=True)
class Tensor:
    """One tensor that is not drawn yet."""

    name: str
    shape: tuple[int, ...]
    draw: Draw

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """The values in C order, at most CHUNK at a time."""
        rng = np.random.default_rng([SEED, zlib.crc32(self.name.encode())])
        for start in range(0, self.size, CHUNK):
            yield exact_in_half(self.draw(rng, min(CHUNK, self.size - start)))

    def values(self) -> NDArray[np.float32]:
        return np.concatenate(list(self.chunks())).reshape(self.shape)


def normal(mean: float, std: float) -> Draw:
    return lambda rng, n: (
        rng.standard_normal(n, dtype=np.float32) * np.float32(std) + np.float32(mean)
    )


def uniform(low: float, high: float) -> Draw:
    return lambda rng, n: rng.random(n, dtype=np.float32) * np.float32(high - low) + np.float32(low)


def exact_in_half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to float16, then to bfloat16 (half to even): the result is exact in both.

    The second rounding keeps the value on float16's grid, subnormals included, because it only
    clears low significant bits.
    """
    bits = values.astype(np.float16).astype(np.float32).view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    bits &= np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def tensors(shape: Shape) -> list[Tensor]:
    """All tensors of a model under BlinkDL's names, in file order.

    The scales keep activations near 1 over any number of tokens: matrices shrink with their
    fan-in, decays lie between 0.85 and 0.9985. Block 0 has no v0, v1, v2.
    """
    d, f, heads = shape.n_embd, shape.n_ffn, shape.n_head
    all_tensors: list[Tensor] = []

    def add(name: str, size: tuple[int, ...], draw: Draw) -> None:
        all_tensors.append(Tensor(name, size, draw))

    def layer_norm(name: str) -> None:
        add(f"{name}.weight", (d,), normal(1, 0.1))
        add(f"{name}.bias", (d,), normal(0, 0.1))

    def matrix(name: str, n_out: int, n_in: int, scale: float = 0.5) -> None:
        add(f"{name}.weight", (n_out, n_in), normal(0, scale / n_in**0.5))

    add("emb.weight", (shape.n_vocab, d), normal(0, 0.5))
    for i in range(shape.n_layer):
        block = f"blocks.{i}"
        if i == 0:
            layer_norm(f"{block}.ln0")
        layer_norm(f"{block}.ln1")
        layer_norm(f"{block}.ln2")
        for mix in "rwkvag":
            add(f"{block}.att.x_{mix}", (1, 1, d), uniform(0, 1))
        biases = {"w": uniform(-6, -1), "a": normal(0, 0.5), "v": normal(0, 0.5)}
        for gate, rank in zip("wavg", shape.ranks, strict=True):
            if gate == "v" and i == 0:
                continue
            if gate in biases:
                add(f"{block}.att.{gate}0", (1, 1, d), biases[gate])
            add(f"{block}.att.{gate}1", (d, rank), normal(0, 0.5 / d**0.5))
            add(f"{block}.att.{gate}2", (rank, d), normal(0, 0.5 / rank**0.5))
        add(f"{block}.att.k_k", (1, 1, d), normal(0.85, 0.1))
        add(f"{block}.att.k_a", (1, 1, d), normal(1, 0.1))
        add(f"{block}.att.r_k", (heads, HEAD_SIZE), normal(0, 0.1))
        for projection in ("receptance", "key", "value", "output"):
            matrix(f"{block}.att.{projection}", d, d)
        layer_norm(f"{block}.att.ln_x")
        add(f"{block}.ffn.x_k", (1, 1, d), uniform(0, 1))
        matrix(f"{block}.ffn.key", f, d)
        matrix(f"{block}.ffn.value", d, f)
    layer_norm("ln_out")
    matrix("head", shape.n_vocab, d, scale=2)
    return all_tensors


def encode(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    """`values` as fp32, fp16 or bf16 (as uint16); exact, since exact_in_half() made them so."""
    match dtype:
        case "fp32":
            return values
        case "fp16":
            return values.astype(np.float16)
        case "bf16":
            return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    raise ValueError(f"unknown type {dtype!r}; use fp32, fp16 or bf16")


ITEM_SIZE = {"fp32": 4, "fp16": 2, "bf16": 2}
SAFETENSORS_TYPE = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
TORCH_STORAGE = {"fp32": "FloatStorage", "fp16": "HalfStorage", "bf16": "BFloat16Storage"}


def write_safetensors(path: Path, shape: Shape, dtype: str) -> None:
    header: dict[str, object] = {}
    offset = 0
    for tensor in tensors(shape):
        n_bytes = tensor.size * ITEM_SIZE[dtype]
        header[tensor.name] = {
            "dtype": SAFETENSORS_TYPE[dtype],
            "shape": tensor.shape,
            "data_offsets": [offset, offset + n_bytes],
        }
        offset += n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors(shape):
            for chunk in tensor.chunks():
                file.write(encode(chunk, dtype).data)


def state_dict_pickle(shape: Shape, dtype: str) -> bytes:
    """The data.pkl of a state dict as torch.save writes it, opcode by opcode (protocol 2)."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def integers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(integer, values)) + b"t"

    empty_dict = b"ccollections\nOrderedDict\n)R"
    out = [b"\x80\x02", empty_dict, b"("]
    for key, tensor in enumerate(tensors(shape)):
        strides = tuple(int(np.prod(tensor.shape[axis + 1 :])) for axis in range(len(tensor.shape)))
        storage = (
            b"(" + text("storage") + f"ctorch\n{TORCH_STORAGE[dtype]}\n".encode()
            + text(str(key)) + text("cpu") + integer(tensor.size) + b"tQ"
        )  # fmt: skip
        out += [
            text(tensor.name), b"ctorch._utils\n_rebuild_tensor_v2\n(",
            storage, integer(0), integers(tensor.shape), integers(strides), b"\x89", empty_dict,
            b"tR",
        ]  # fmt: skip
    return b"".join([*out, b"u."])


def write_pth(path: Path, shape: Shape, dtype: str) -> None:
    """A zip of one pickle and one raw record per tensor, each at a multiple of 64 bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:

        def record(name: str, n_bytes: int, chunks: Iterator[bytes | memoryview]) -> None:
            info = zipfile.ZipInfo(f"archive/{name}")
            info.file_size = n_bytes
            assert archive.fp is not None
            # A local header is 30 bytes, the name, and the extra field: its tag and size, then
            # the padding that aligns the data.
            start = archive.fp.tell() + 30 + len(info.filename) + 4
            padding = -start % 64
            info.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
            with archive.open(info, "w") as file:
                for chunk in chunks:
                    file.write(chunk)

        pickled = state_dict_pickle(shape, dtype)
        record("data.pkl", len(pickled), iter([pickled]))
        record("byteorder", 6, iter([b"little"]))
        for key, tensor in enumerate(tensors(shape)):
            record(
                f"data/{key}",
                tensor.size * ITEM_SIZE[dtype],
                (encode(chunk, dtype).data for chunk in tensor.chunks()),
            )
        record("version", 2, iter([b"3\n"]))


WRITERS = {"safetensors": write_safetensors, "pth": write_pth}


def default_folder() -> Path:
    """$WKVM_BENCH_DIR, or wkvm-bench in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("WKVM_BENCH_DIR") or cache / "wkvm-bench")


def once(path: Path, write: Callable[[Path], None]) -> Path:
    """`path`, written through a temporary name if it is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            unfinished = Path(scratch) / path.name
            write(unfinished)
            unfinished.rename(path)
    return path


def checkpoint(folder: Path, name: str, dtype: str = "fp16", suffix: str = "safetensors") -> Path:
    """The checkpoint of shape `name`, written into `folder` if it is not there yet."""
    return once(
        folder / f"rwkv7-{name}-{dtype}.{suffix}",
        lambda path: WRITERS[suffix](path, SHAPES[name], dtype),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write one random RWKV-7 checkpoint.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--dtype", choices=ITEM_SIZE, default="fp16")
    parser.add_argument("--format", choices=WRITERS, default="safetensors")
    parser.add_argument("--dir", type=Path, default=default_folder())
    args = parser.parse_args()
    print(checkpoint(args.dir, args.shape, args.dtype, args.format))


if __name__ == "__main__":
    main()
