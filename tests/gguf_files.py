"""GGUF files for tests, written apart from the code under test.

test_gguf.py holds this writer to one of llama.cpp's, byte by byte.
"""

import re
import struct
from pathlib import Path
from typing import Any

import ggml_blocks
import numpy as np
from checkpoint_files import Raw
from spellings import as_type, n_blocks, transposed, without_first_v

TYPES = {
    **{"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8},
    **{"Q4_K": 12, "Q6_K": 14, "BF16": 30},
}
U8, U16, U32, I32, F32, BOOL, TEXT, LIST, U64, F64 = 0, 2, 4, 5, 6, 7, 8, 9, 10, 12
_LETTERS = {U8: "B", U16: "H", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", F64: "d"}

#: Key -> (type, value); of a list: (LIST, (type, values)); (RAW, bytes): type and value as bytes.
Metadata = dict[str, tuple[int, Any]]
RAW = -1

_PARTS = (
    (r"^emb\.", "token_embd."),
    (r"^blocks\.0\.ln0\.", "token_embd_norm."),
    (r"^ln_out\.", "output_norm."),
    (r"^head\.", "output."),
    (r"\.ln1\.", ".attn_norm."),
    (r"\.ln2\.", ".attn_norm_2."),
    (r"\.att\.ln_x\.", ".time_mix_ln."),
    (r"\.ffn\.x_k$", ".channel_mix_lerp_k.weight"),
    (r"\.ffn\.", ".channel_mix_"),
    (r"\.att\.([wavg][012]|[kr]_[ka])$", r".time_mix_\1.weight"),
    (r"\.att\.", ".time_mix_"),
    (r"^blocks\.", "blk."),
)


def their_name(name: str) -> str:
    for pattern, replacement in _PARTS:
        name = re.sub(pattern, replacement, name)
    return name


def is_lora(name: str) -> bool:
    return re.search(r"\.att\.[wavg][12]$", name) is not None


def spelt(tensors: Raw, matrix_type: str = "F32") -> Raw:
    """In llama.cpp's names, shapes and types, as its converter does it: matrices have a type, LoRA
    matrices but w1 and w2 too; the rest is float32."""
    respelt: Raw = {}
    for name, raw in without_first_v(tensors).items():
        is_matrix = re.search(r"(emb|head|receptance|key|value|output)\.weight$", name)
        is_wide = not (is_matrix or is_lora(name)) or re.search(r"\.w[12]$", name)
        dtype, shape, data = as_type(raw, "F32" if is_wide else matrix_type)
        if is_lora(name):
            dtype, shape, data = transposed(dtype, shape, data)
        elif not is_matrix:
            shape = (int(np.prod(shape)),)
        respelt[their_name(name)] = (dtype, shape, data)
    for block in range(n_blocks(tensors)):
        parts = [respelt.pop(f"blk.{block}.time_mix_x_{gate}") for gate in "rwkvag"]
        fused = b"".join(data for _, _, data in parts)
        width = parts[0][1][0]
        respelt[f"blk.{block}.time_mix_lerp_fused.weight"] = ("F32", (6, 1, 1, width), fused)
    for i in "012":
        respelt[f"blk.0.time_mix_v{i}.weight"] = respelt[f"blk.0.time_mix_a{i}.weight"]
    return respelt


def quantised(tensors: Raw, kind: str) -> tuple[Raw, Raw]:
    """A spelt checkpoint with random blocks in place of its matrices; and its exact float32."""
    blocks, values = dict(tensors), dict(tensors)
    for seed, (name, (dtype, shape, _)) in enumerate(tensors.items()):
        if len(shape) == 2 and dtype == "F16":
            data = ggml_blocks.random_blocks(kind, shape[0] * shape[1], seed)
            exact = ggml_blocks.float32(ggml_blocks.unpack(kind, data))
            blocks[name] = (kind, shape, data)
            values[name] = ("F32", shape, exact)
    return blocks, values


def canonical(tensors: Raw, values: Raw) -> Raw:
    """A canonical checkpoint's tensors with the types and values that they have in a spelt one."""
    found: Raw = {}
    for name, (_, shape, _) in without_first_v(tensors).items():
        if ".att.x_" in name:
            fused = their_name(re.sub(r"x_.$", "lerp_fused", name)) + ".weight"
            dtype, _, data = values[fused]
            size, row = len(data) // 6, "rwkvag".index(name[-1])
            found[name] = (dtype, shape, data[row * size : (row + 1) * size])
        elif is_lora(name):
            found[name] = transposed(*values[their_name(name)])
        else:
            dtype, _, data = values[their_name(name)]
            found[name] = (dtype, shape, data)
    return found


def metadata(tensors: Raw, head_size: int = 64) -> Metadata:
    """What llama.cpp's converter says of a spelt checkpoint."""
    shapes = {name: shape for name, (_, shape, _) in tensors.items()}
    n_vocab, width = shapes["token_embd.weight"]
    n_layers = sum(name.endswith(".attn_norm.weight") for name in shapes)
    return {
        "general.architecture": (TEXT, "rwkv7"),
        "rwkv7.context_length": (U32, 4096),
        "rwkv7.embedding_length": (U32, width),
        "rwkv7.block_count": (U32, n_layers),
        "rwkv7.feed_forward_length": (U32, shapes["blk.0.channel_mix_key.weight"][0]),
        "rwkv7.attention.head_count": (U32, 0),
        "rwkv7.attention.layer_norm_epsilon": (F32, 1e-5),
        "rwkv7.wkv.head_size": (U32, head_size),
        "rwkv7.attention.decay_lora_rank": (U32, shapes["blk.1.time_mix_w1.weight"][0]),
        "rwkv7.attention.iclr_lora_rank": (U32, shapes["blk.1.time_mix_a1.weight"][0]),
        "rwkv7.attention.value_residual_mix_lora_rank": (
            U32,
            shapes["blk.1.time_mix_v1.weight"][0],
        ),
        "rwkv7.attention.gate_lora_rank": (U32, shapes["blk.1.time_mix_g1.weight"][0]),
        "tokenizer.ggml.model": (TEXT, "rwkv"),
        "tokenizer.ggml.tokens": (LIST, (TEXT, [f"token{i}" for i in range(n_vocab)])),
        "tokenizer.ggml.token_type": (LIST, (I32, [1] * n_vocab)),
    }


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind: int, value: Any) -> bytes:
    if kind == TEXT:
        return text(value)
    if kind == LIST:
        inner, values = value
        parts = b"".join(value_bytes(inner, item) for item in values)
        return struct.pack("<IQ", inner, len(values)) + parts
    return struct.pack("<" + _LETTERS[kind], value)


def container(
    tensors: Raw,
    entries: Metadata,
    *,
    version: int = 3,
    alignment: int = 32,
    is_padded: bool = True,
) -> bytes:
    """A whole file. Types are names in ``TYPES``, or numbers; a key of bytes is written so."""
    keys = b"".join(
        (key if isinstance(key, bytes) else text(key))
        + (value if kind == RAW else struct.pack("<I", kind) + value_bytes(kind, value))
        for key, (kind, value) in entries.items()
    )
    described, data = b"", b""
    for name, (dtype, shape, part) in tensors.items():
        data += bytes(-len(data) % alignment)
        number = TYPES[dtype] if isinstance(dtype, str) else dtype
        described += text(name) + struct.pack("<I", len(shape))
        described += b"".join(struct.pack("<Q", side) for side in reversed(shape))
        described += struct.pack("<IQ", number, len(data))
        data += part
    counts = struct.pack("<IQQ", version, len(tensors), len(entries))
    header = b"GGUF" + counts + keys + described
    end = -len(data) % alignment if is_padded else 0
    return header + bytes(-len(header) % alignment) + data + bytes(end)


def write(path: Path, tensors: Raw, entries: Metadata | None = None, **options: Any) -> Path:
    """A spelt checkpoint as a file; returns it."""
    entries = metadata(tensors) if entries is None else entries
    path.write_bytes(container(tensors, entries, **options))
    return path
