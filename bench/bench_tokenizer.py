"""Encoding text into a list of ids, one thread, against the Rust package `pyrwkv-tokenizer`.

    pip install pyrwkv-tokenizer
    python bench/bench_tokenizer.py [FILE ...]

Without files the texts are made from this repository: English from its documentation, code from
its sources, Chinese, Japanese and Korean drawn from the vocabulary, and a mixture of the three.
Lines are drawn at random, so that no processor learns their order. A ratio is the peer's time over
ours in one round; each side's time is the best of three calls.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from harness import Report, alternate, ratios, require, rounds_argument, spread

from wkvm import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
WORLD = ROOT / "vocab" / "rwkv_vocab_v20230424.txt"
TEXT_BYTES = 2_000_000  # of each text that is made here
CALLS = 3


def lines_of(patterns: Iterable[str]) -> list[str]:
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return [line for path in paths for line in path.read_text().splitlines(keepends=True)]


def east_asian_lines(tokenizer: Tokenizer, draw: random.Random) -> list[str]:
    """Lines of 5 to 40 tokens that consist of East Asian letters, and a full stop."""
    words = []
    for token in range(tokenizer.max_id + 1):
        text = tokenizer.token_bytes(token).decode("utf-8", "ignore")
        if text and all(c > "\u3000" and unicodedata.category(c) == "Lo" for c in text):
            words.append(text)
    return ["".join(draw.choices(words, k=draw.randint(5, 40))) + "。\n" for _ in range(20_000)]


def drawn(draw: random.Random, lines: list[str]) -> str:
    """TEXT_BYTES of lines, in runs of up to ten neighbours."""
    runs, n_bytes = [], 0
    while n_bytes < TEXT_BYTES:
        start = draw.randrange(len(lines))
        runs.append("".join(lines[start : start + draw.randint(1, 10)]))
        n_bytes += len(runs[-1].encode())
    return "".join(runs)


def made_texts(tokenizer: Tokenizer) -> dict[str, str]:
    draw = random.Random(0)
    english = lines_of(["*.md", "docs/*.md", "bench/*.md", "native/kernels/*.md"])
    code = lines_of(["src/**/*.py", "tests/*.py", "native/**/*.cc", "native/**/*.h"])
    east_asian = east_asian_lines(tokenizer, draw)
    texts = {"English": english, "code": code, "East Asian": east_asian}
    made = {name: drawn(draw, lines) for name, lines in texts.items()}
    mixture = [part for text in made.values() for part in parts(draw, text)]
    draw.shuffle(mixture)
    return {**made, "mixed": "".join(mixture)}


def parts(draw: random.Random, text: str) -> list[str]:
    """A third of `text`, in parts of 200 to 2,000 characters."""
    out, at = [], 0
    while at < len(text) // 3:
        n = draw.randint(200, 2000)
        out.append(text[at : at + n])
        at += n
    return out


def best_of(encode: Callable[[str], list[int]], text: str) -> Callable[[], float]:
    def seconds() -> float:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            encode(text)
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="UTF-8 texts")
    parser.add_argument("--rounds", type=rounds_argument, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.set_defaults(shape="one thread")
    args = parser.parse_args()
    try:
        from pyrwkv_tokenizer import RWKVTokenizer
    except ImportError:
        sys.exit("the peer is missing: pip install pyrwkv-tokenizer")

    tokenizer, peer = Tokenizer.from_file(WORLD), RWKVTokenizer()
    if args.files:
        texts = {path.name: path.read_bytes().decode() for path in args.files}
        texts["together"] = "".join(texts.values())
    else:
        texts = made_texts(tokenizer)
    for name, text in texts.items():
        ids = tokenizer.encode(text)
        require(ids == peer.encode(text), f"{name}: the ids differ from the peer's")
        require(tokenizer.decode(ids) == text, f"{name}: the ids do not decode to the text")

    report = Report("tokenizer", args)
    for name, text in texts.items():
        times = alternate(
            {"wkvm": best_of(tokenizer.encode, text), "peer": best_of(peer.encode, text)},
            args.rounds,
        )
        megabytes = len(text.encode()) / 1e6
        speed = {side: spread([megabytes / t for t in times[side]]) for side in times}
        ratio = spread(ratios(times["peer"], times["wkvm"]))
        report.result(
            name,
            {"megabytes_per_second": speed, "ratio": ratio},
            f"{speed['wkvm']['median']:.0f} MB/s, peer {speed['peer']['median']:.0f}, ratio "
            f"{ratio['median']:.2f} ({ratio['range'][0]:.2f} to {ratio['range'][1]:.2f})",
        )
    report.claim(f"speed over the peer's, {name}", ratio["median"], least=3)

    opening = []  # milliseconds
    for _ in range(args.rounds):
        start = time.perf_counter()
        Tokenizer.from_file(WORLD)
        opening.append((time.perf_counter() - start) * 1e3)
    result = spread(opening)
    report.result("opening the vocabulary, ms", result, f"{result['median']:.1f}")
    report.claim("opening the vocabulary, ms", result["median"], most=100)
    report.finish()


if __name__ == "__main__":
    main()
