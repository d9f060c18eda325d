"""Trains the model: draws rows of tokens, steps, evaluates, and keeps checkpoints.

In the output folder: ``checkpoint.pt`` (the latest, to go on from), ``stable.pt`` (the last one
before the learning rate fell, to train further from), ``best.pt`` (the weights with the lowest
held-out loss) and ``log.jsonl``.
"""

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from model import RwkvX, Shape
from muon import Muon
from prepare import Weights
from torch import Tensor

import wkvm


@dataclass(frozen=True)
class Plan:
    """How long, and how.

    Attributes:
        steps: in all.
        decay_steps: the last of them, in which the learning rate falls to nothing and the
            mixture's second column is drawn.
        batch: rows of one step.
        context: tokens of a row.
        lr_muon, lr_adam: at their highest.
        warmup: steps in which the rates rise.
        every: steps between two evaluations and checkpoints.
        compile: whether PyTorch compiles the model, which takes minutes and saves a quarter.
    """

    steps: int
    decay_steps: int
    batch: int = 12
    context: int = 512
    lr_muon: float = 0.015
    lr_adam: float = 2e-3
    warmup: int = 100
    every: int = 200
    compile: bool = True

    def rate(self, step: int) -> float:
        """The learning rate at ``step``, as a share of the highest."""
        return min(1.0, (step + 1) / self.warmup, (self.steps - step) / max(self.decay_steps, 1))

    def is_decaying(self, step: int) -> bool:
        """Whether ``step`` belongs to the last part."""
        return step >= self.steps - self.decay_steps


class Rows:
    """Draws training rows; the same ones for the same seed and step, whatever came before."""

    def __init__(self, path: Path, mixture: Weights, context: int, seed: int) -> None:
        arrays = np.load(path)
        self._context, self._seed = context, seed
        self._sources = []
        sources = [source for source in mixture if source in arrays]
        for source in sources:
            tokens = arrays[source]
            if len(tokens) <= context:
                tokens = np.resize(tokens, context + 1)  # a source shorter than a row repeats
            starts = arrays[f"{source}.starts"]
            starts = starts[starts < len(tokens) - context]
            self._sources.append((tokens, starts if len(starts) else np.array([0])))
        sizes = np.array([len(tokens) for tokens, _ in self._sources])
        weights = np.array([mixture[source] for source in sources]).T * sizes
        self._shares = weights / weights.sum(1, keepdims=True)

    def draw(self, step: int, batch: int, is_decaying: bool) -> Tensor:
        """Tokens, int64 [batch, context + 1].

        Every other row begins where a document does, since a user's first token has no past.
        """
        rng = np.random.default_rng((self._seed, step))
        rows = []
        for i in range(batch):
            tokens, starts = self._sources[
                rng.choice(len(self._sources), p=self._shares[int(is_decaying)])
            ]
            start = rng.choice(starts) if i % 2 else rng.integers(len(tokens) - self._context)
            rows.append(tokens[start : start + self._context + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))


class HeldOut:
    """The held-out texts as rows of tokens, to measure a model on while it trains."""

    def __init__(self, out: Path, context: int, limit: int) -> None:
        """A source gives at most ``limit`` rows; one that has not even a row is repeated."""
        tokenizer = wkvm.Tokenizer.from_file(out / "vocab.txt")
        entries = json.loads((out / "held_out.json").read_text(encoding="utf-8"))
        self._parts: list[tuple[Tensor, float, float]] = []  # rows, bytes per token, weight
        for entry in entries.values():
            tokens = [0]
            for text in entry["texts"]:
                tokens += [*tokenizer.encode(text), 0]
            n = min(max((len(tokens) - 1) // context, 1), limit)
            tokens = (tokens * (context // len(tokens) + 2))[: n * context + 1]
            rows = [tokens[i * context : (i + 1) * context + 1] for i in range(n)]
            n_bytes = sum(len(tokenizer.token_bytes(t)) for row in rows for t in row[1:])
            self._parts.append((torch.tensor(rows), n_bytes / (n * context), entry["weight"]))

    @torch.no_grad()
    def bits_per_byte(self, model: RwkvX, batch: int) -> float:
        """The mean over the sources, each weighted as the last part of the training draws it."""
        mean = total = 0.0
        for rows, density, weight in self._parts:
            losses = [float(loss_of(model, part)) * len(part) for part in rows.split(batch)]
            mean += weight * sum(losses) / len(rows) / math.log(2) / density
            total += weight
        return mean / total


def loss_of(model: Any, rows: Tensor) -> Tensor:
    """The mean loss, in nats per token, of rows [B, T + 1]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def optimizers(model: RwkvX, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    matrices, others, decays = [], [], []
    for name, weight in model.named_parameters():
        if name.endswith(".weight") and weight.ndim == 2 and not name.startswith(("emb", "head")):
            matrices.append(weight)
        elif name.endswith(("w.offset", "emb.weight")):
            decays.append(weight)
        else:
            others.append(weight)
    adam = torch.optim.AdamW(
        [{"params": others, "lr": plan.lr_adam}, {"params": decays, "lr": 2 * plan.lr_adam}],
        betas=(0.9, 0.98),
        eps=1e-12,
        weight_decay=0.0,
    )
    return [Muon(matrices, plan.lr_muon, weight_decay=0.1), adam]


def train(out: Path, shape: Shape, plan: Plan, mixture: Weights, seed: int) -> None:
    """Train from ``out/checkpoint.pt``, or from the beginning, to the end of the plan."""
    torch.manual_seed(seed)
    model = RwkvX(shape)
    steppers = optimizers(model, plan)
    highest = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    rows = Rows(out / "tokens.npz", mixture, plan.context, seed)
    held_out = HeldOut(out, plan.context, limit=16)
    step, best, seconds = 0, math.inf, 0.0
    if (out / "checkpoint.pt").exists():
        saved = torch.load(out / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        for stepper, state in zip(steppers, saved["steppers"], strict=True):
            stepper.load_state_dict(state)
        step, seconds = saved["step"], saved["seconds"]
        best = torch.load(out / "best.pt", weights_only=True)["bits_per_byte"]
        keep_log(out / "log.jsonl", step)
        print(f"going on from step {step}")
    compiled = torch.compile(model) if plan.compile else model

    def checkpoint() -> dict[str, Any]:
        states = [stepper.state_dict() for stepper in steppers]
        numbers = {"step": step, "seconds": seconds, "shape": asdict(shape)}
        return {"model": model.state_dict(), "steppers": states, **numbers}

    n_rows, clock, recent = plan.batch * plan.context, time.monotonic(), math.nan
    while step < plan.steps:
        if step == plan.steps - plan.decay_steps:
            save(checkpoint(), out / "stable.pt")
        for stepper, rates in zip(steppers, highest, strict=True):
            for group, rate in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = rate * plan.rate(step)
        loss = loss_of(compiled, rows.draw(step, plan.batch, plan.is_decaying(step)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        step += 1
        recent = loss.item() if math.isnan(recent) else 0.98 * recent + 0.02 * loss.item()
        if step % 20 == 0:
            spent = seconds + time.monotonic() - clock
            print(
                f"step {step} of {plan.steps}, {step * n_rows / 1e6:.2f}M tokens, "
                f"loss {recent:.3f}, {spent / 60:.1f} minutes",
                flush=True,
            )
        if step % plan.every == 0 or step == plan.steps:
            bits = held_out.bits_per_byte(model, plan.batch)
            if not math.isfinite(bits):
                raise FloatingPointError(f"the held-out loss is {bits} at step {step}")
            seconds, clock = seconds + time.monotonic() - clock, time.monotonic()
            entry = {
                "step": step,
                "tokens": step * n_rows,
                "train": recent,
                "bits_per_byte": bits,
                "minutes": seconds / 60,
            }
            with (out / "log.jsonl").open("a") as log:
                log.write(json.dumps(entry) + "\n")
            print(f"held out: {bits:.4f} bits per byte", flush=True)
            if bits < best:
                best = bits
                numbers = {"step": step, "bits_per_byte": bits, "shape": asdict(shape)}
                save({"model": model.state_dict(), **numbers}, out / "best.pt")
            save(checkpoint(), out / "checkpoint.pt")


def keep_log(path: Path, step: int) -> None:
    """Drop the entries after ``step``, if training goes on from an earlier checkpoint."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))


def save(value: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that an interruption leaves the earlier one."""
    torch.save(value, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)
