"""Writes a random checkpoint of checkpoints.py as a GGUF file for llama.cpp.

    PEER_PYTHON bench/write_gguf.py 0.4B Q8_0

Runs in the peer's environment (packages gguf and llama_cpp). Each tensor gets the type that
llama.cpp's own converter gives it: float32 for vectors, the token-shift mixes and w1, w2. Q8_0 is
quantised from the F16 file by llama.cpp itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import llama_cpp
import numpy as np
from checkpoints import HEAD_SIZE, SHAPES, Shape, default_folder, encode, once, tensors
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray

TYPES = ("F16", "BF16", "Q8_0")
ENCODING = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
CONTEXT = 4096  # tokens; an upper limit that a recurrent model does not need


class Entry(NamedTuple):
    """One tensor of the GGUF file, its values not drawn yet."""

    name: str
    shape: tuple[int, ...]
    is_matrix: bool  # stored in the file's type; else float32
    values: Callable[[], NDArray[np.float32]]


def entries(shape: Shape) -> Iterator[Entry]:
    """Every tensor, in file order.

    LoRA factors are stored transposed: ours are [in, rank] and [rank, out], GGUF's [out, in].
    """
    ours = {tensor.name: tensor for tensor in tensors(shape)}
    d = shape.n_embd

    def matrix(name: str, source: str) -> Entry:
        return Entry(f"{name}.weight", ours[source].shape, True, ours[source].values)

    def vector(name: str, source: str) -> Entry:
        return Entry(name, (d,), False, lambda: ours[source].values().reshape(d))

    def layer_norm(name: str, source: str) -> Iterator[Entry]:
        yield vector(f"{name}.weight", f"{source}.weight")
        yield vector(f"{name}.bias", f"{source}.bias")

    def lora(name: str, source: str, is_matrix: bool) -> Entry:
        n_in, n_out = ours[source].shape
        return Entry(
            f"{name}.weight",
            (n_out, n_in),
            is_matrix,
            lambda: np.ascontiguousarray(ours[source].values().T),
        )

    def fused_mixes(block: str) -> NDArray[np.float32]:
        return np.stack([ours[f"{block}.att.x_{mix}"].values() for mix in "rwkvag"])

    yield matrix("token_embd", "emb.weight")
    yield from layer_norm("token_embd_norm", "blocks.0.ln0")
    yield from layer_norm("output_norm", "ln_out")
    yield matrix("output", "head.weight")
    for i in range(shape.n_layer):
        blk, block = f"blk.{i}", f"blocks.{i}"
        yield from layer_norm(f"{blk}.attn_norm", f"{block}.ln1")
        yield from layer_norm(f"{blk}.attn_norm_2", f"{block}.ln2")
        yield Entry(
            f"{blk}.time_mix_lerp_fused.weight",
            (6, 1, 1, d),
            False,
            partial(fused_mixes, block),
        )
        for gate in "wavg":
            # llama.cpp wants block 0's v0, v1, v2 in the shapes of a0, a1, a2, and never reads
            # them.
            source = "a" if i == 0 and gate == "v" else gate
            if gate != "g":
                yield vector(f"{blk}.time_mix_{gate}0.weight", f"{block}.att.{source}0")
            for factor in "12":
                name = f"{blk}.time_mix_{gate}{factor}"
                yield lora(name, f"{block}.att.{source}{factor}", is_matrix=gate != "w")
        for name in ("k_k", "k_a", "r_k"):
            yield vector(f"{blk}.time_mix_{name}.weight", f"{block}.att.{name}")
        for name in ("receptance", "key", "value", "output"):
            yield matrix(f"{blk}.time_mix_{name}", f"{block}.att.{name}.weight")
        yield from layer_norm(f"{blk}.time_mix_ln", f"{block}.att.ln_x")
        yield vector(f"{blk}.channel_mix_lerp_k.weight", f"{block}.ffn.x_k")
        for name in ("key", "value"):
            yield matrix(f"{blk}.channel_mix_{name}", f"{block}.ffn.{name}.weight")


def write_float(path: Path, shape: Shape, file_type: str) -> None:
    """Stream an F16 or BF16 file, one tensor in memory at a time."""
    writer = GGUFWriter(path, "rwkv7")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ffn)
    writer.add_head_count(0)
    writer.add_layer_norm_eps(1e-5)
    writer.add_wkv_head_size(HEAD_SIZE)
    decay, iclr, value, gate = shape.ranks
    writer.add_decay_lora_rank(decay)
    writer.add_iclr_lora_rank(iclr)
    writer.add_value_residual_mix_lora_rank(value)
    writer.add_gate_lora_rank(gate)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{file_type}"])
    # The benches speak in ids; the texts only have to differ.
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"token{i}" for i in range(shape.n_vocab)])
    writer.add_token_types([TokenType.NORMAL] * shape.n_vocab)

    def type_of(entry: Entry) -> str:
        return file_type if entry.is_matrix else "F32"

    for entry in entries(shape):
        kind = type_of(entry)
        item = np.dtype(np.float32 if kind == "F32" else np.float16)
        n_bytes = int(np.prod(entry.shape)) * item.itemsize
        writer.add_tensor_info(entry.name, entry.shape, item, n_bytes, GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for entry in entries(shape):
        writer.write_tensor_data(encode(entry.values(), ENCODING[type_of(entry)]))
    writer.close()


def quantise(source: Path, path: Path) -> None:
    """llama.cpp's own Q8_0 of an F16 file."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    status = llama_cpp.llama_model_quantize(bytes(source), bytes(path), params)
    if status != 0:
        sys.exit(f"llama.cpp could not quantise {source} (status {status})")


def gguf_file(folder: Path, name: str, file_type: str) -> Path:
    """The GGUF of shape `name` in `folder`, written if it is not there yet."""

    def write(path: Path) -> None:
        if file_type == "Q8_0":
            quantise(gguf_file(folder, name, "F16"), path)
        else:
            write_float(path, SHAPES[name], file_type)

    return once(folder / f"rwkv7-{name}-{file_type}.gguf", write)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write one random RWKV-7 checkpoint as GGUF.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("--dir", type=Path, default=default_folder())
    args = parser.parse_args()
    print(gguf_file(args.dir, args.shape, args.type))


if __name__ == "__main__":
    main()
