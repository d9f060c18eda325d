"""What the benches share: turns, paired ratios, agreement of logits, claims, the JSON report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import SHAPES, checkpoint, default_folder
from numpy.typing import NDArray

import wkvm

MIN_ROUNDS = 7
PAUSE = 0.05  # seconds between turns: the spinning threads of the side before go to sleep


# ---------------------------------------------------------------- turns and ratios


def alternate(
    sides: Mapping[str, Callable[[], float]], rounds: int, pause: float = PAUSE
) -> dict[str, list[float]]:
    """Measure the sides turn by turn: `rounds` values of each, one untimed turn before.

    Every second round runs backwards, so that no side always follows the same other one.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for measure in sides.values():
        measure()
    for i in range(rounds):
        for name in list(sides)[:: 1 if i % 2 == 0 else -1]:
            time.sleep(pause)
            values[name].append(sides[name]())
    return values


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """above[i] / below[i]: both of one round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles, extremes, and the values themselves."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "median": median,
        "quartiles": [low, high],
        "range": [min(values), max(values)],
        "values": list(values),
    }


# ---------------------------------------------------------------- correctness before time


def prompt(n: int, n_vocab: int) -> list[int]:
    """n token ids that hardly repeat."""
    return [(i * 7919 + 11) % n_vocab for i in range(n)]


def agreement(logits: NDArray[np.float32], other: NDArray[np.float32]) -> dict[str, float]:
    """Cosine, Kullback-Leibler divergence of `other` from `logits`, and whether top-1 is equal."""
    a, b = logits.astype(np.float64), other.astype(np.float64)
    log_p = a - a.max() - np.log(np.exp(a - a.max()).sum())
    log_q = b - b.max() - np.log(np.exp(b - b.max()).sum())
    return {
        "cosine": float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))),
        "kl": float((np.exp(log_p) * (log_p - log_q)).sum()),
        "top1_equal": float(a.argmax() == b.argmax()),
    }


def require(condition: bool, message: str) -> None:
    """Stop before anything is timed."""
    if not condition:
        sys.exit(f"not timed, because it is not correct: {message}")


# ---------------------------------------------------------------- files


def converted(folder: Path, shape: str, dtype: str) -> Path:
    """The random checkpoint of `shape` as `wkvm convert` writes it, always made anew."""
    path = folder / f"rwkv7-{shape}-{dtype}.wkvm.safetensors"
    path.unlink(missing_ok=True)
    subprocess.run(
        [
            sys.executable, "-m", "wkvm", "convert", checkpoint(folder, shape), path,
            "--dtype", dtype,
        ],
        check=True,
        stdout=sys.stderr,
    )  # fmt: skip
    return path


# ---------------------------------------------------------------- options, claims, report


def options(description: str, shape: str) -> argparse.ArgumentParser:
    """The options that every bench has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", choices=SHAPES, default=shape)
    parser.add_argument("--dir", type=Path, default=default_folder(), help="for model files")
    parser.add_argument("--rounds", type=rounds_argument, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    return parser


def rounds_argument(text: str) -> int:
    rounds = int(text)
    if rounds < MIN_ROUNDS:
        raise argparse.ArgumentTypeError(f"a median needs at least {MIN_ROUNDS} rounds")
    return rounds


def machine() -> dict[str, Any]:
    """What a number depends on besides the code."""
    cpu = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    here = Path(__file__).parent
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "wkvm": wkvm.__version__,
        "commit": git.stdout.strip() or None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class Report:
    """Collects the results and claims of one bench, prints them, writes them as JSON."""

    def __init__(self, bench: str, arguments: argparse.Namespace) -> None:
        self._json: Path | None = arguments.json
        self.shape: str = arguments.shape
        facts = machine()
        self._content: dict[str, Any] = {
            "bench": bench,
            "shape": arguments.shape,
            "machine": facts,
            "results": {},
            "claims": [],
        }
        print(f"{bench}, {arguments.shape}: {facts['cpu']}, {facts['cpus']} CPUs, ", end="")
        print(f"wkvm {facts['wkvm']} at {facts['commit']}")
        if facts["load_average"] > 0.5:
            print(f"warning: other work runs here (load average {facts['load_average']:.1f})")

    def fact(self, name: str, value: Any) -> None:
        self._content["machine"][name] = value

    def result(self, name: str, value: Any, text: str) -> None:
        """`value` for the file, `text` for the reader."""
        self._content["results"][name] = value
        print(f"  {name:<42} {text}")

    def claim(
        self, name: str, value: float, *, least: float | None = None, most: float | None = None
    ) -> None:
        """A promise of the project: `value` is at least, or at most, a bound."""
        holds = (least is None or value >= least) and (most is None or value <= most)
        self._content["claims"].append(
            {"name": name, "value": value, "least": least, "most": most, "holds": holds}
        )
        bound = f"at least {least:g}" if least is not None else f"at most {most:g}"
        print(f"  {'holds ' if holds else 'MISSED'} {name}: {value:.3g}, promised {bound}")

    def finish(self) -> None:
        """Write the file; exit with 1 if a claim was missed."""
        if self._json:
            self._json.write_text(json.dumps(self._content, indent=1) + "\n")
        if not all(claim["holds"] for claim in self._content["claims"]):
            sys.exit(1)
