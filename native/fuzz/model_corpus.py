"""Makes the corpus of model_fuzz: `python model_corpus.py FOLDER`."""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from wkvm.formats.convert import convert_checkpoint

N_VOCAB, N_FFN, RANK = 16, 16, 1


def checkpoint(n_embd: int, n_rwkv: int, n_attn: int) -> dict[str, np.ndarray]:
    """One head of RWKV-7 or, with attention blocks, RWKV-X, in float16."""
    rng = np.random.default_rng(1)
    prefix = "rwkv." if n_attn else ""
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}emb.weight": (N_VOCAB, n_embd),
        f"{prefix}head.weight": (N_VOCAB, n_embd),
    }
    norms = [f"{prefix}ln_out", f"{prefix}blocks.0.ln0"]
    blocks = [f"moba.{i}." for i in range(n_attn)]
    for i in range(n_rwkv):
        block = f"{prefix}blocks.{i}."
        blocks.append(block)
        norms.append(f"{block}att.ln_x")
        gates = "wag" if i == 0 else "wagv"
        for leaf in ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a", "w0", "a0"]:
            shapes[f"{block}att.{leaf}"] = (n_embd,)
        if i > 0:
            shapes[f"{block}att.v0"] = (n_embd,)
        for gate in gates:
            shapes[f"{block}att.{gate}1"] = (n_embd, RANK)
            shapes[f"{block}att.{gate}2"] = (RANK, n_embd)
        shapes[f"{block}att.r_k"] = (1, n_embd)
    for block in blocks:
        norms += [f"{block}ln1", f"{block}ln2"]
        for leaf in ["receptance", "key", "value", "output"]:
            shapes[f"{block}att.{leaf}.weight"] = (n_embd, n_embd)
        shapes[f"{block}ffn.x_k"] = (n_embd,)
        shapes[f"{block}ffn.key.weight"] = (N_FFN, n_embd)
        shapes[f"{block}ffn.value.weight"] = (n_embd, N_FFN)
    for norm in norms:
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (n_embd,)
    return {
        name: rng.uniform(-0.5, 0.5, shape).astype(np.float16) for name, shape in shapes.items()
    }


def main() -> None:
    """Write a plain RWKV-7, the same converted, and an RWKV-X converted to int8."""
    folder = Path(sys.argv[1])
    plain = folder / "plain.safetensors"
    save_file(checkpoint(16, 2, 0), plain)
    convert_checkpoint(plain, folder / "packed.safetensors", overwrite=True)
    attention = folder / "attention.safetensors"
    save_file(checkpoint(64, 1, 1), attention)
    convert_checkpoint(attention, folder / "packed_int8.safetensors", dtype="int8", overwrite=True)
    attention.unlink()


if __name__ == "__main__":
    main()
