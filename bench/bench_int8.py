"""What int8 costs: its logits against those of fp32, on the golden models and their prompts.

    WKVM_FIXTURES=FOLDER python bench/bench_int8.py

Beside each figure stands that of the official packages with the weights of the same matrices
rounded to int8. They keep activations in fp32; wkvm rounds those too, so it loses more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import Report, agreement, require
from numpy.typing import NDArray

import wkvm
from wkvm._engine import SafetensorsFile

MODELS = {  # name -> file below the folder of golden files, or that with .gz
    "tiny7": "rwkv7_tiny/tiny-rwkv7-834K-fp32.safetensors",
    "r7-s128": "rwkv7_synth/r7-s128/model.pth",
    "x128-6p2": "rwkvx/x128-6p2/model.safetensors",
    "x192-4p1": "rwkvx/x192-4p1/model.pth",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(__file__).resolve().parents[2] / "shared/fixtures"
    folder = Path(os.environ.get("WKVM_FIXTURES", beside))
    parser.add_argument("--fixtures", type=Path, default=folder, help="folder of golden files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.set_defaults(shape="golden models")
    args = parser.parse_args()
    index = args.fixtures / "int8/w8_cases.json"
    if not index.exists():
        sys.exit(f"{index} is missing: set WKVM_FIXTURES to the folder of golden files")
    cases = json.loads(index.read_text())["cases"]

    report = Report("int8", args)
    print(f"  {'':<42} {'mean KL':<20} {'top-1 agreement':<18} tokens")
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            if case["name"].endswith("_nohead"):
                continue  # wkvm's int8 has an int8 head
            path = unpacked(args.fixtures / MODELS[case["model"]], Path(scratch) / case["name"])
            tokens = golden_tokens(index.parent / case["file"])
            kl, top1 = compare(case, path, tokens)
            official = {"mean_kl": case["mean_kl"], "top1": case["top1_agree"]}
            report.result(
                case["name"],
                {"mean_kl": kl, "top1": top1, "tokens": len(tokens), "official": official},
                f"{kl:.1e} ({case['mean_kl']:.1e})    {top1:.3f} ({case['top1_agree']:.3f})"
                f"      {len(tokens)}",
            )
            found.append((case, kl, top1))
    for case, kl, top1 in found:
        report.claim(f"{case['name']}: KL over the official", kl / case["mean_kl"], most=6)
        report.claim(f"{case['name']}: top-1 lost", case["top1_agree"] - top1, most=0.05)
    report.finish()


def unpacked(path: Path, target: Path) -> Path:
    """`path`, or the file `target` with what `path`.gz holds."""
    if path.exists():
        return path
    with gzip.open(f"{path}.gz") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    return target


def golden_tokens(path: Path) -> list[int]:
    file = SafetensorsFile(path)
    tensors = file.tensors()
    index, dtype = next((i, d) for i, (name, d, _) in enumerate(tensors) if name == "tokens")
    return file.read(index).view(f"<{dtype[0]}{int(dtype[1:]) // 8}").tolist()


def compare(case: dict, path: Path, tokens: list[int]) -> tuple[float, float]:
    """Mean KL of int8 from fp32, and the share of tokens with the same most probable successor."""
    policy = "memory" if "memory" in case["name"] else "full"
    exact, rounded = (
        logits(
            case, wkvm.load(path, dtype=dtype, policy=policy, kv_dtype="fp32", n_slots=1), tokens
        )
        for dtype in ("fp32", "int8")
    )
    found = [agreement(*pair) for pair in zip(exact, rounded, strict=True)]
    kl = float(np.mean([each["kl"] for each in found]))
    require(np.isfinite(kl), f"{case['name']}: the divergence is {kl}")
    return kl, float(np.mean([each["top1_equal"] for each in found]))


def logits(case: dict, model: wkvm.Model, tokens: list[int]) -> NDArray[np.float32]:
    """float32 [T, V], the prompt cut as the official code's was: "P", one call; "D", by token."""
    calls = [
        n for op, k in case.get("ops", [["P", len(tokens)]]) for n in ([k], [1] * k)[op == "D"]
    ]
    session, ends = model.session(), np.cumsum(calls).tolist()
    require(ends[-1] == len(tokens), f"{case['name']}: its calls do not add up to its tokens")
    parts = [
        session.forward(tokens[end - n : end], "all") for n, end in zip(calls, ends, strict=True)
    ]
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
