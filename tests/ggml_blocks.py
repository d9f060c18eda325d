"""ggml's quantised blocks of 32 values, value by value, apart from the code under test."""

import struct

import numpy as np
from checkpoint_files import Raw
from spellings import rounded

#: Name -> bytes of a block, bits of a level, what is subtracted from it, if it has a minimum.
BLOCKS = {
    "Q4_0": (18, 4, 8, False),
    "Q4_1": (20, 4, 0, True),
    "Q5_0": (22, 5, 16, False),
    "Q5_1": (24, 5, 0, True),
    "Q8_0": (34, 8, 0, False),
}


def random_blocks(kind: str, n_values: int, seed: int) -> bytes:
    """Blocks of random levels, with scales and minima as quantised weights have them."""
    n_bytes, _, _, has_minimum = BLOCKS[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n_values // 32, n_bytes), np.uint8)
    scales = rng.uniform(-1, 1, (len(blocks), 1)) * (0.002 if kind == "Q8_0" else 0.02)
    if has_minimum:
        scales = np.hstack((scales, scales * rng.uniform(-16, 0, scales.shape)))
    scales = scales.astype("<f2")
    blocks[:, : 2 * scales.shape[1]] = scales.view(np.uint8)
    return blocks.tobytes()


def unpack(kind: str, data: bytes) -> list[float]:
    """The values of blocks: float64 holds every product and sum here exactly."""
    n_bytes, bits, offset, has_minimum = BLOCKS[kind]
    values = []
    for begin in range(0, len(data), n_bytes):
        block = data[begin : begin + n_bytes]
        scale, minimum = struct.unpack("<2e", block[:4])
        for i in range(32):
            if bits == 8:
                (level,) = struct.unpack("<b", block[2 + i : 3 + i])
            else:
                half = block[-16 + i % 16]
                level = half & 15 if i < 16 else half >> 4
            if bits == 5:
                (high,) = struct.unpack("<I", block[-20:-16])
                level += (high >> i & 1) << 4
            product = scale * (level - offset)
            values.append(product + minimum if has_minimum else product)
    return values


def float32(values: list[float]) -> bytes:
    """Values that are float32 numbers, as such."""
    exact = np.array(values, "<f4")
    assert exact.tolist() == values
    return exact.tobytes()


def small_checkpoint(seed: int = 0) -> Raw:
    """A random RWKV-7 of 2 blocks, width 64 and 64 tokens, whose every row is whole blocks.

    float16 and bfloat16 hold its values; it has block 0's v0, v1, v2, which mean nothing.
    """
    rng = np.random.default_rng(seed)
    width, n_vocab, n_ffn = 64, 64, 128
    ranks = {"w": 32, "a": 64, "v": 32, "g": 96}
    arrays = {"emb.weight": rng.normal(0, 0.5, (n_vocab, width))}
    for name in ("blocks.0.ln0", "blocks.0.ln1", "blocks.0.ln2", "blocks.0.att.ln_x"):
        for block in range(1 if name.endswith("ln0") else 2):
            norm = name.replace(".0.", f".{block}.")
            arrays[f"{norm}.weight"] = rng.normal(1, 0.2, width)
            arrays[f"{norm}.bias"] = rng.normal(0, 0.2, width)
    for block in range(2):
        att = f"blocks.{block}.att"
        for gate in "rwkvag":
            arrays[f"{att}.x_{gate}"] = rng.uniform(0, 1, (1, 1, width))
        for gate, rank in ranks.items():
            if gate != "g":
                arrays[f"{att}.{gate}0"] = rng.normal(-1, 1, (1, 1, width))
            arrays[f"{att}.{gate}1"] = rng.normal(0, 0.1, (width, rank))
            arrays[f"{att}.{gate}2"] = rng.normal(0, 0.1, (rank, width))
        for name in ("k_k", "k_a"):
            arrays[f"{att}.{name}"] = rng.normal(1, 0.2, (1, 1, width))
        arrays[f"{att}.r_k"] = rng.normal(0, 0.2, (1, width))
        for name in ("receptance", "key", "value", "output"):
            arrays[f"{att}.{name}.weight"] = rng.normal(0, 0.2, (width, width))
        arrays[f"blocks.{block}.ffn.x_k"] = rng.uniform(0, 1, (1, 1, width))
        arrays[f"blocks.{block}.ffn.key.weight"] = rng.normal(0, 0.2, (n_ffn, width))
        arrays[f"blocks.{block}.ffn.value.weight"] = rng.normal(0, 0.2, (width, n_ffn))
    arrays["ln_out.weight"] = rng.normal(1, 0.2, width)
    arrays["ln_out.bias"] = rng.normal(0, 0.2, width)
    arrays["head.weight"] = rng.normal(0, 0.2, (n_vocab, width))
    return rounded(
        {name: ("F32", a.shape, a.astype("<f4").tobytes()) for name, a in arrays.items()}
    )
