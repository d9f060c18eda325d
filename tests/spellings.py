"""One RWKV-7 checkpoint as other programs spell it, written apart from the code under test."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_files import SIZES, Raw, to_float64, write_safetensors

#: Block 0 does not need them, and fla has no place for them.
FIRST_V = ("blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2")

_HF_PARTS = (
    (r"^emb\.", "model.embeddings."),
    (r"^ln_out\.", "model.norm."),
    (r"^head\.", "lm_head."),
    (r"\.ln0\.", ".pre_norm."),
    (r"\.ln1\.", ".attn_norm."),
    (r"\.ln2\.", ".ffn_norm."),
    (r"\.att\.ln_x\.", ".attn.g_norm."),
    (r"\.att\.receptance\.", ".attn.r_proj."),
    (r"\.att\.key\.", ".attn.k_proj."),
    (r"\.att\.value\.", ".attn.v_proj."),
    (r"\.att\.output\.", ".attn.o_proj."),
    (r"\.att\.([wav])0$", r".attn.\1_lora.lora.2.bias"),
    (r"\.att\.([wavg])1$", r".attn.\1_lora.lora.0.weight"),
    (r"\.att\.([wavg])2$", r".attn.\1_lora.lora.2.weight"),
    (r"\.att\.", ".attn."),
    (r"^blocks\.", "model.layers."),
)


def without_first_v(tensors: Raw) -> Raw:
    return {name: raw for name, raw in tensors.items() if name not in FIRST_V}


def hf(tensors: Raw, *, fused: bool = False) -> Raw:
    """In fla's names and shapes; `fused`: with one x_x [6, D] per block, as its first version."""
    respelt: Raw = {}
    for name, (dtype, shape, data) in without_first_v(tensors).items():
        theirs = name
        for pattern, replacement in _HF_PARTS:
            theirs = re.sub(pattern, replacement, theirs)
        if re.search(r"\.att\.[wavg][12]$", name):
            respelt[theirs] = transposed(dtype, shape, data)
        elif shape[:2] == (1, 1) and ".att.x_" not in name:
            respelt[theirs] = (dtype, shape[2:], data)
        else:
            respelt[theirs] = (dtype, shape, data)
    if fused:
        for block in range(n_blocks(tensors)):
            parts = [respelt.pop(f"model.layers.{block}.attn.x_{gate}") for gate in "rwkvag"]
            (dtype, (_, _, width), _) = parts[0]
            joined = b"".join(data for _, _, data in parts)
            respelt[f"model.layers.{block}.attn.x_x"] = (dtype, (6, width), joined)
    return respelt


def hf_config(tensors: Raw) -> dict[str, Any]:
    """A config.json that says everything."""
    n_heads, head_size = tensors["blocks.0.att.r_k"][1]
    n_vocab, width = tensors["emb.weight"][1]
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "attn": None,
        "hidden_act": "sqrelu",
        "hidden_size": width,
        "head_dim": head_size,
        "num_heads": n_heads,
        "intermediate_size": tensors["blocks.0.ffn.key.weight"][1][0],
        "num_hidden_layers": n_blocks(tensors),
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "vocab_size": n_vocab,
    }


def write_hf(folder: Path, tensors: Raw, config: dict[str, Any] | bytes | None) -> Path:
    """A folder of a model.safetensors of `tensors` as they are and a config.json; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    if config is not None:
        text = config if isinstance(config, bytes) else json.dumps(config).encode()
        (folder / "config.json").write_bytes(text)
    return folder


def webrwkv(tensors: Raw) -> Raw:
    """As web-rwkv's converter writes it: float16, last two dimensions of LoRA matrices swapped."""
    respelt: Raw = {}
    for name, raw in tensors.items():
        half = as_type(raw, "F16")
        respelt[name] = transposed(*half) if re.search(r"\.att\.[wavg][12]$", name) else half
    return respelt


def as_type(raw: tuple[str, tuple[int, ...], bytes], dtype: str) -> tuple[Any, ...]:
    """A tensor in another type, which must hold its values exactly."""
    wide = to_float64(*raw).astype("<f4")
    array = {
        "F32": wide,
        "F16": wide.astype("<f2"),
        "BF16": (wide.view("<u4") >> 16).astype("<u2"),
    }[dtype]
    data = array.tobytes()
    assert (to_float64(dtype, raw[1], data) == wide).all(), f"not exact in {dtype}"
    return dtype, raw[1], data


def all_as_type(tensors: Raw, dtype: str) -> Raw:
    return {name: as_type(raw, dtype) for name, raw in tensors.items()}


def rounded(tensors: Raw) -> Raw:
    """The checkpoint in float32, its values rounded so that float16 and bfloat16 hold them too."""

    def round_one(raw: tuple[str, tuple[int, ...], bytes]) -> tuple[Any, ...]:
        half = to_float64(*raw).astype("<f2").astype("<f4")
        return "F32", raw[1], (half.view("<u4") >> 16 << 16).tobytes()

    return {name: round_one(raw) for name, raw in tensors.items()}


def transposed(dtype: str, shape: tuple[int, ...], data: bytes) -> tuple[Any, ...]:
    items = np.frombuffer(data, f"V{SIZES[dtype]}").reshape(shape)
    return dtype, shape[::-1], np.ascontiguousarray(items.T).tobytes()


def n_blocks(tensors: Raw) -> int:
    return sum(name.endswith(".ln1.weight") for name in tensors)


def canonical(tensors: Raw) -> Raw:
    """As ``open_checkpoint`` describes them: types in lower case."""
    return {name: (dtype.lower(), shape, data) for name, (dtype, shape, data) in tensors.items()}
