"""``wkvm info``: what a checkpoint holds and what running it costs, without reading its weights."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wkvm._engine import Model
from wkvm.cli.dtypes import DTYPES
from wkvm.formats.load import naming, new_builder, policy_defaults
from wkvm.formats.open import open_checkpoint
from wkvm.formats.source import TensorInfo

_FAMILIES = {"rwkv7": "RWKV-7", "rwkvx": "RWKV-X"}
_KV_BYTES = {"fp16": 2, "fp32": 4}  # of one K or V element


def info(
    file: Annotated[
        Path,
        typer.Argument(help="A .safetensors, shard index, .pth, or their folder."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print family, shapes, order of blocks, and the bytes that a token and a session take."""
    facts = describe(file)
    print(json.dumps(facts, indent=2) if as_json else _as_text(facts))


def describe(path: str | Path) -> dict[str, Any]:
    """Everything that ``wkvm info`` prints, as it prints it with ``--json``.

    Raises:
        FileError, FormatError, UnsupportedError: as ``formats.load.load_model`` does.
    """
    with open_checkpoint(path) as source:
        if source.kind == "wkvm packed":
            with naming(source.path):
                model = Model.open(source.path).info()
            bytes_per_token = {model["dtype"]: model["bytes_per_token"]}
            ranks = None  # the packed shapes are padded
        else:
            model = new_builder(source, "auto").info()
            bytes_per_token = {
                dtype: new_builder(source, dtype).info()["bytes_per_token"] for dtype in DTYPES
            }
            ranks = _lora_ranks(source.tensors, model["n_rwkv"])
        return {
            "path": str(source.path),
            "kind": source.kind,
            "family": model["family"],
            "dtype": model["dtype"],
            "n_vocab": model["n_vocab"],
            "n_embd": model["n_embd"],
            "head_size": model["head_size"],
            "n_ffn": model["n_ffn"],
            "lora_ranks": ranks,
            "n_rwkv": model["n_rwkv"],
            "n_attn": model["n_attn"],
            "n_unused": model["n_unused"],
            "block_order": model["block_order"],
            "n_params": model["n_params"],
            "bytes_per_token": bytes_per_token,
            "recurrent_state_bytes": model["recurrent_state_bytes"],
            "kv_bytes_per_token": {
                dtype: model["kv_values_per_token"] * size for dtype, size in _KV_BYTES.items()
            },
            "policy_defaults": policy_defaults(source),
        }


def _lora_ranks(tensors: list[TensorInfo], n_rwkv: int) -> dict[str, list[int]]:
    """The distinct ranks of the LoRA pairs w, a, v and g, of which each block has its own."""
    ranks: dict[str, set[int]] = {}
    for tensor in tensors:
        match = re.search(r"blocks\.(\d+)\.att\.([wavg])1$", tensor.name)
        if match and int(match[1]) < n_rwkv:  # one that runs
            ranks.setdefault(match[2], set()).add(tensor.shape[1])  # [D, rank]
    return {name: sorted(ranks[name]) for name in "wavg" if name in ranks}


def note_left_over(n_unused: int) -> None:
    """Say on standard error how many RWKV blocks of a file never run, if there are any."""
    if n_unused:
        which = "block of the file never runs" if n_unused == 1 else "blocks of the file never run"
        print(f"note: {n_unused} left-over RWKV {which}, as in the official code", file=sys.stderr)


def _as_text(facts: dict[str, Any]) -> str:
    """The facts for people: one line each, names aligned."""
    blocks = f"{facts['n_rwkv']} RWKV"
    if facts["n_attn"]:
        blocks += f", {facts['n_attn']} attention"
    lines = {
        "file": f"{facts['path']} ({facts['kind']})",
        "family": _FAMILIES[facts["family"]],
        "dtype": facts["dtype"],
        "shape": f"n_embd {facts['n_embd']}, head size {facts['head_size']}, "
        f"channel mix {facts['n_ffn']}",
        "vocabulary": f"{facts['n_vocab']:,} tokens",
        "blocks": blocks,
        "order": facts["block_order"],
        "parameters": f"{facts['n_params']:,}",
        "bytes read per token": _each(facts["bytes_per_token"]),
        "state per session": f"{facts['recurrent_state_bytes']:,} bytes",
    }
    if facts["lora_ranks"]:
        lines["LoRA ranks"] = ", ".join(
            f"{name} {'/'.join(map(str, ranks))}" for name, ranks in facts["lora_ranks"].items()
        )
    if facts["n_unused"]:
        left_over = range(facts["n_rwkv"], facts["n_rwkv"] + facts["n_unused"])
        lines["left over"] = (
            " ".join(f"R{i}" for i in left_over)
            + f" (never run, as in the official code: {left_over.stop} RWKV blocks do"
            f" not divide by {facts['n_attn']} attention blocks)"
        )
    if facts["n_attn"]:
        lines["KV per cached token"] = _each(facts["kv_bytes_per_token"]) + " bytes"
    if facts["policy_defaults"]:
        lines["policy defaults"] = ", ".join(
            f"{k} {v}" for k, v in facts["policy_defaults"].items()
        )
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def _each(by_dtype: dict[str, int]) -> str:
    return ", ".join(f"{dtype} {n:,}" for dtype, n in by_dtype.items())
