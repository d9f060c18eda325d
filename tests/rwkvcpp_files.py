"""rwkv.cpp's files for tests, written apart from the code under test."""

import re
import struct
from pathlib import Path

import ggml_blocks
import numpy as np
from checkpoint_files import Raw
from spellings import as_type, n_blocks, transposed

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 7, "Q5_1": 8, "Q8_0": 9}
MAGIC = 0x67676D66


def spelt(tensors: Raw, matrix_type: str = "F32") -> Raw:
    """In rwkv.cpp's names, shapes and types: with F16, vectors and r_k stay float32."""
    respelt: Raw = {}
    for name, raw in tensors.items():
        is_vector = len(raw[1]) == 1 or re.search(r"\.(x_.|[wav]0|k_k|k_a|r_k)$", name)
        dtype, shape, data = as_type(raw, "F32" if is_vector else matrix_type)
        if re.search(r"\.att\.[wavg][12]$", name):
            dtype, shape, data = transposed(dtype, shape, data)
        respelt[name] = (dtype, shape, data)
    for block in range(n_blocks(tensors)):
        parts = [respelt.pop(f"blocks.{block}.att.x_{gate}") for gate in "rwkvag"]
        fused = b"".join(data for _, _, data in parts)
        respelt[f"blocks.{block}.att.x_rwkvag"] = ("F32", (6, 1, parts[0][1][2]), fused)
    return respelt


def quantised(tensors: Raw, kind: str) -> tuple[Raw, Raw]:
    """A spelt checkpoint with random blocks where rwkv.cpp has them, in all that has two sides but
    embedding and head; and its exact float32."""
    blocks, values = dict(tensors), dict(tensors)
    for seed, (name, (_, shape, _)) in enumerate(tensors.items()):
        if len(shape) == 2 and name not in ("emb.weight", "head.weight") and shape[1] % 32 == 0:
            data = ggml_blocks.random_blocks(kind, int(np.prod(shape)), seed)
            blocks[name] = (kind, shape, data)
            values[name] = ("F32", shape, ggml_blocks.float32(ggml_blocks.unpack(kind, data)))
    return blocks, values


def canonical(tensors: Raw, values: Raw) -> Raw:
    """A canonical checkpoint's tensors with the types and values that they have in a spelt one."""
    found: Raw = {}
    for name, (_, shape, _) in tensors.items():
        if ".att.x_" in name:
            dtype, _, data = values[name[:-1] + "rwkvag"]
            size, row = len(data) // 6, "rwkvag".index(name[-1])
            found[name] = (dtype, shape, data[row * size : (row + 1) * size])
        elif re.search(r"\.att\.[wavg][12]$", name):
            found[name] = transposed(*values[name])
        else:
            found[name] = values[name]
    return found


def header(tensors: Raw, version: int = 101, dtype: str = "F32") -> list[int]:
    n_vocab, width = tensors["emb.weight"][1]
    return [MAGIC, version, n_vocab, width, n_blocks(tensors), TYPES[dtype]]


def tensor(name: str | bytes, dtype: str | int, shape: tuple[int, ...], data: bytes) -> bytes:
    key = name.encode() if isinstance(name, str) else name
    number = TYPES[dtype] if isinstance(dtype, str) else dtype
    sides = struct.pack(f"<{len(shape)}I", *reversed(shape))
    return struct.pack("<3I", len(shape), len(key), number) + sides + key + data


def write(path: Path, tensors: Raw, head: list[int] | None = None) -> Path:
    """A spelt checkpoint as a file; returns it."""
    head = header(tensors) if head is None else head
    parts = [tensor(name, *raw) for name, raw in tensors.items()]
    path.write_bytes(struct.pack("<6i", *head) + b"".join(parts))
    return path
