"""Compares wkvm with the official ``rwkv-x`` package: greedy tokens, prompt by prompt.

The package's ``model_old``, in float32, with full attention in prefill and decode; wkvm's policy
``full`` in float32, with a float32 cache.
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import wkvm
from wkvm.formats.open import open_checkpoint

# Two logits closer than this, in both programs, may rank either way: a float32 forward of such a
# model differs from a float64 one by up to 1e-4.
CLOSE = 2e-4


class Comparison(NamedTuple):
    """What one prompt gave.

    Attributes:
        prompt: the text.
        n_equal: tokens before the first difference.
        n: tokens in all.
        gaps: the distance of the two best logits at the first difference, in the official package
            and in wkvm; None without a difference.
    """

    prompt: str
    n_equal: int
    n: int
    gaps: tuple[float, float] | None

    @property
    def agrees(self) -> bool:
        """Whether the two programs are equal as far as float32 can tell."""
        return self.gaps is None or all(gap < CLOSE for gap in self.gaps)


def compare(path: Path, prompts: list[str], n: int) -> list[Comparison]:
    """Continue every prompt by ``n`` greedy tokens in both programs.

    Args:
        path: an exported model with its vocabulary.
        prompts: texts.
        n: tokens each.
    """
    ours = wkvm.load(path, dtype="fp32", kv_dtype="fp32", policy="full")
    theirs = official_model(path)
    found = []
    for prompt in prompts:
        tokens = ours.tokenizer.encode(prompt)
        session = ours.session()
        mine = torch.from_numpy(session.forward(tokens))
        reference, state = theirs.forward(tokens, None)
        gaps, n_equal = None, 0
        while n_equal < n:
            token = int(reference.argmax())
            if int(mine.argmax()) != token:
                gaps = (gap(reference), gap(mine))
                break
            n_equal += 1
            mine = torch.from_numpy(session.forward([token]))
            reference, state = theirs.forward([token], state)
        session.close()
        found.append(Comparison(prompt, n_equal, n, gaps))
    return found


def gap(logits: torch.Tensor) -> float:
    """The distance of the two best logits."""
    best = logits.topk(2).values
    return float(best[0] - best[1])


def official_model(path: Path) -> Any:
    """The official package's model of an exported file."""
    from rwkv_x.model_old import RWKV_X, RWKV_X_Config  # noqa: PLC0415 -- needed for this alone

    weights = {}
    with open_checkpoint(path) as source:
        for index, (name, dtype, shape) in enumerate(source.tensors):
            values = source.read(index).view({"f16": np.float16, "f32": np.float32}[dtype])
            weights[name] = torch.from_numpy(values.astype(np.float32)).view(shape)
    config = RWKV_X_Config(prefill_attn_mode="full", decoding_attn_mode="full")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pth"
        torch.save(weights, file)
        return RWKV_X(str(file), "cpu fp32", config)
