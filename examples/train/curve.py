"""Draws the training's log: loss and held-out bits per byte over tokens."""

import json
from pathlib import Path

import matplotlib.pyplot as plt


def draw(out: Path) -> None:
    """Write ``curve.svg`` from ``log.jsonl``, both in ``out``."""
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    tokens = [entry["tokens"] / 1e6 for entry in log]
    figure, left = plt.subplots(figsize=(7, 4))
    right = left.twinx()
    left.plot(tokens, [entry["train"] for entry in log], color="tab:blue")
    right.plot(tokens, [entry["bits_per_byte"] for entry in log], color="tab:orange")
    left.set_xlabel("tokens, millions")
    left.set_ylabel("training loss, nats per token", color="tab:blue")
    right.set_ylabel("held-out bits per byte", color="tab:orange")
    figure.tight_layout()
    figure.savefig(out / "curve.svg", metadata={"Date": None})
    plt.close(figure)
