"""``wkvm info``: what a checkpoint holds and what running it costs, without reading its weights."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wkvm.bundled import bundled_model_path
from wkvm.cli.dtypes import DTYPES
from wkvm.formats.load import lora_ranks, model_info, new_builder, policy_defaults
from wkvm.formats.open import open_checkpoint
from wkvm.formats.source import Source, shown
from wkvm.formats.vocabulary import recorded_tokenizer
from wkvm.text.tokenizer import Tokenizer

_FAMILIES = {"rwkv7": "RWKV-7", "rwkvx": "RWKV-X"}
_KV_BYTES = {"fp16": 2, "fp32": 4}  # of one K or V element


def info(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A checkpoint of any kind, or its folder; else the model that comes with wkvm."
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor, and where in the file it lies.")
    ] = False,
) -> None:
    """Print family, shapes, order of blocks, and the bytes that a token and a session take."""
    facts = describe(bundled_model_path() if file is None else file, with_tensors=tensors)
    if file is None:
        note_bundled(facts["n_params"], "FILE")
    print(json.dumps(facts, indent=2) if as_json else _as_text(facts))


def describe(path: str | Path, *, with_tensors: bool = False) -> dict[str, Any]:
    """Everything that ``wkvm info`` prints, as it prints it with ``--json``.

    Args:
        path: the checkpoint.
        with_tensors: list the tensors too, sorted by name.

    Raises:
        FileError, FormatError, UnsupportedError: as ``formats.load.load_model`` does.
    """
    with open_checkpoint(path) as source:
        model = model_info(source)
        if source.kind == "wkvm packed":
            bytes_per_token = {model["dtype"]: model["bytes_per_token"]}
            ranks = None  # the packed shapes are padded
        else:
            bytes_per_token = {
                dtype: new_builder(source, dtype).info()["bytes_per_token"] for dtype in DTYPES
            }
            ranks = lora_ranks(source.tensors, model["n_rwkv"])
        tokenizer = recorded_tokenizer(source.path, source.metadata, model["n_vocab"], Tokenizer)
        facts = {
            "path": str(source.path),
            "kind": source.kind,
            "family": model["family"],
            "dtype": model["dtype"],
            "n_vocab": model["n_vocab"],
            "vocabulary": None if tokenizer is None else _vocabulary(tokenizer),
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
        if with_tensors:
            facts["tensors"] = _tensors(source)
        return facts


def _tensors(source: Source) -> list[dict[str, Any]]:
    """Name, type and shape of every tensor, and where in the files it lies."""
    return sorted(
        (
            {**tensor._asdict(), "origin": origin}
            for tensor, origin in zip(source.tensors, source.origins, strict=True)
        ),
        key=lambda tensor: tensor["name"],
    )


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """What there is to say of a vocabulary that lies in the checkpoint."""
    texts = map(tokenizer.token_bytes, range(tokenizer.max_id + 1))
    return {"n_entries": sum(text != b"" for text in texts), "sha256": tokenizer.digest}


def note_bundled(n_params: int, how: str) -> None:
    """Say on standard error that nobody named a model, which one this is, and how to name one."""
    print(
        f"note: using the bundled demonstration model ({n_params / 1e6:.0f}M parameters); name a "
        f"real one with {how}",
        file=sys.stderr,
    )


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
    own = facts["vocabulary"]
    lines = {
        "file": f"{facts['path']} ({facts['kind']})",
        "family": _FAMILIES[facts["family"]],
        "dtype": facts["dtype"],
        "shape": f"n_embd {facts['n_embd']}, head size {facts['head_size']}, "
        f"channel mix {facts['n_ffn']}",
        "vocabulary": f"{facts['n_vocab']:,} tokens"
        + (f"; in the file, {own['n_entries']:,} entries, sha256 {own['sha256']}" if own else ""),
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
    text = _table(lines)
    if "tensors" in facts:
        rows = {
            shown(tensor["name"]): f"{tensor['dtype']} {list(tensor['shape'])} <- "
            + shown(tensor["origin"])
            for tensor in facts["tensors"]
        }
        text += "\n\n" + _table(rows)
    return text


def _table(lines: dict[str, str]) -> str:
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def _each(by_dtype: dict[str, int]) -> str:
    return ", ".join(f"{dtype} {n:,}" for dtype, n in by_dtype.items())
