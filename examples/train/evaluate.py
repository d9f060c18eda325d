"""Evaluates a finished model: everything that its card tells, as one table."""

import json
import tempfile
from pathlib import Path
from typing import Any

import measure
import torch
from export import export
from model import ChannelMix, RwkvX, Shape

import wkvm
from wkvm.formats.load import load_model

ROW = 512  # tokens, as in training


@torch.no_grad()
def zeros(best: Path, rows: list[list[int]]) -> dict[str, float]:
    """The share of zeros after each squared ReLU, in PyTorch, each row from an empty state."""
    saved = torch.load(best, weights_only=True)
    model = RwkvX(Shape(**saved["shape"]))
    model.load_state_dict(saved["model"])
    counts: dict[str, list[int]] = {}

    def record(name: str) -> Any:
        def hook(_module: Any, inputs: tuple[torch.Tensor]) -> None:
            count = counts.setdefault(name, [0, 0])
            count[0] += int((inputs[0] == 0).sum())
            count[1] += inputs[0].numel()

        return hook

    for name, module in model.named_modules():
        if isinstance(module, ChannelMix):
            module.value.register_forward_pre_hook(record(name))
    for row in rows:
        model(torch.tensor([row]))
    return {name: n_zeros / n for name, (n_zeros, n) in counts.items()}


def first_rows(tokenizer: wkvm.Tokenizer, entries: dict[str, Any]) -> list[list[int]]:
    """At most four rows of tokens of every held-out source; a source repeats to fill one."""
    rows = []
    for entry in entries.values():
        tokens = [token for text in entry["texts"] for token in (*tokenizer.encode(text), 0)]
        tokens *= ROW // len(tokens) + 1
        rows += [tokens[i * ROW : (i + 1) * ROW] for i in range(min(4, len(tokens) // ROW))]
    return rows


def evaluate(out: Path, exported: Path, packed: Path) -> dict[str, Any]:
    """Everything that the model card tells of a model.

    Args:
        out: the recipe's folder.
        exported: the float16 model.
        packed: the int8 one, of which samples and answers are taken.
    """
    entries = json.loads((out / "held_out.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder) / "model.safetensors"
        export(out / "best.pt", out / "vocab.txt", trained, "f32")
        models = {
            "fp32": wkvm.load(trained),
            "fp16": wkvm.load(exported, dtype="fp16"),
            "int8": wkvm.load(packed),
        }
    best = torch.load(out / "best.pt", weights_only=True)
    model = models["int8"]
    return {
        "bytes": {"fp16": exported.stat().st_size, "int8": packed.stat().st_size},
        "digest": load_model(packed).weights_digest(),
        "info": model.info,
        "n_entries": model.tokenizer.max_id,
        "best": {"step": best["step"], "bits_per_byte": best["bits_per_byte"]},
        "held_out": {dtype: measure.held_out(model, entries) for dtype, model in models.items()},
        "held_out_bytes": sum(len(t.encode()) for e in entries.values() for t in e["texts"]),
        "zeros": zeros(out / "best.pt", first_rows(model.tokenizer, entries)),
        "answers": measure.answers(model, measure.PROMPTS["questions"]),
        "samples": measure.samples(model, measure.PROMPTS["samples"]),
        "first_token_seconds": measure.first_token_seconds(packed),
        "isa": model.isa,
        "threads": model.threads,
    }
