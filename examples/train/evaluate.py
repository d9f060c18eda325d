"""Evaluates a finished model: everything that its card tells, as one table."""

import json
from pathlib import Path
from typing import Any

import measure
import torch
from model import ChannelMix, RwkvX, Shape

import wkvm
from wkvm.formats.load import load_model


@torch.no_grad()
def zeros(best: Path, tokens: list[int]) -> dict[str, float]:
    """The share of zeros after each squared ReLU, over ``tokens`` from an empty state."""
    saved = torch.load(best, weights_only=True)
    model = RwkvX(Shape(**saved["shape"]))
    model.load_state_dict(saved["model"])
    shares: dict[str, float] = {}

    def record(name: str) -> Any:
        def hook(_module: Any, inputs: tuple[torch.Tensor]) -> None:
            shares[name] = float((inputs[0] == 0).float().mean())

        return hook

    for name, module in model.named_modules():
        if isinstance(module, ChannelMix):
            module.value.register_forward_pre_hook(record(name))
    model(torch.tensor(tokens)[None])
    return shares


def evaluate(out: Path, exported: Path, packed: Path) -> dict[str, Any]:
    """Everything that the model card tells of a model.

    Args:
        out: the recipe's folder.
        exported: the float16 model.
        packed: the int8 one, of which samples and answers are taken.
    """
    entries = json.loads((out / "held_out.json").read_text(encoding="utf-8"))
    models = {
        "fp32": wkvm.load(exported, dtype="fp32"),
        "fp16": wkvm.load(exported, dtype="fp16"),
        "int8": wkvm.load(packed),
    }
    some = "\n\n".join(text for entry in entries.values() for text in entry["texts"][:4])
    tokens = models["fp32"].tokenizer.encode(some)[:4096]
    return {
        "bytes": {"fp16": exported.stat().st_size, "int8": packed.stat().st_size},
        "digest": load_model(packed).weights_digest(),
        "n_params": models["int8"].info["n_params"],
        "held_out": {dtype: measure.held_out(model, entries) for dtype, model in models.items()},
        "held_out_bytes": sum(len(t.encode()) for e in entries.values() for t in e["texts"]),
        "zeros": zeros(out / "best.pt", tokens[: len(tokens) // 64 * 64]),
        "answers": measure.answers(models["int8"], measure.PROMPTS["questions"]),
        "samples": measure.samples(models["int8"], measure.PROMPTS["samples"]),
        "first_token_seconds": measure.first_token_seconds(packed),
        "isa": models["int8"].isa,
        "threads": models["int8"].threads,
    }
