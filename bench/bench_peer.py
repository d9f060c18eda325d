"""Against llama.cpp on the same random weights, turn by turn in one run.

    python bench/peer.py && python bench/bench_peer.py --shape 0.4B

Only one side computes at a time; each has loaded its three files once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness import (
    Report,
    agreement,
    alternate,
    converted,
    options,
    prompt,
    ratios,
    require,
    spread,
)
from ours import Ours
from peer import Peer, default_environment, gguf_file

PAIRS = {"int8": "Q8_0", "fp16": "F16", "bf16": "BF16"}  # our type: the peer's
# The largest KL between the two that rounding explains, about ten times what was seen. F16:
# llama.cpp narrows the activations to float16; BF16: to bfloat16; Q8_0 and int8 are two
# different approximations.
MAX_KL = {"int8": 1e-2, "fp16": 1e-5, "bf16": 5e-4}
CHECKED_TOKENS = 40
PREFILL_TOKENS = 512

# (our type, what) -> least ratio by number of threads, at shape 0.4B. Decode is held against the
# peer's file of the same width, prefill against the fastest of all three.
CLAIMS = {
    ("int8", "decode"): {1: 1.4, 2: 1.4},
    ("fp16", "decode"): {1: 1.1, 2: 1.05},
    ("int8", "prefill"): {1: 1.5, 2: 1.5},
}


def check(report: Report, engines: dict[str, Ours], peers: dict[str, Peer]) -> None:
    """Both sides compute the same model."""
    tokens = prompt(CHECKED_TOKENS, engines["fp16"].out.size)
    for dtype, kind in PAIRS.items():
        found = agreement(engines[dtype].logits(tokens), peers[kind].logits(tokens))
        text = f"cosine {found['cosine']:.7f}  KL {found['kl']:.1e}"
        report.result(f"{dtype} and {kind}, logits", found, text)
        require(found["kl"] <= MAX_KL[dtype], f"{dtype} and {kind} differ: {found}")


def main() -> None:
    parser = options(__doc__ or "", shape="0.4B")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=32, help="decoded in one turn")
    parser.add_argument("--peer", type=Path, default=default_environment())
    args = parser.parse_args()
    report = Report("peer", args)
    files = {dtype: converted(args.dir, args.shape, dtype) for dtype in PAIRS}

    with ExitStack() as stack:
        peers = {
            kind: stack.enter_context(
                Peer(args.peer, gguf_file(args.peer, args.dir, args.shape, kind))
            )
            for kind in PAIRS.values()
        }
        report.fact("peer", peers["F16"].facts)
        for threads in args.threads:
            engines = {dtype: Ours(path, threads) for dtype, path in files.items()}
            report.fact("isa", engines["int8"].model.isa)
            check(report, engines, peers)
            for what, n_tokens in (("decode", args.tokens), ("prefill", PREFILL_TOKENS)):
                tokens = prompt(n_tokens, engines["fp16"].out.size)
                sides: dict[str, Callable[[], float]] = {}
                for dtype, kind in PAIRS.items():
                    sides[dtype] = partial(getattr(engines[dtype], what), tokens)
                    sides[kind] = partial(getattr(peers[kind], what), tokens, threads)
                compare(report, what, threads, n_tokens, alternate(sides, args.rounds))
    report.finish()


def compare(
    report: Report, what: str, threads: int, n_tokens: int, seconds: dict[str, list[float]]
) -> None:
    """Print and record one rotation: `seconds` of every side for `n_tokens`, round by round."""
    fastest = min(PAIRS.values(), key=lambda kind: statistics.median(seconds[kind]))
    for dtype, kind in PAIRS.items():
        against = fastest if what == "prefill" else kind
        ratio = spread(ratios(seconds[against], seconds[dtype]))
        ours, theirs = (spread([n_tokens / s for s in seconds[side]]) for side in (dtype, against))
        name = f"{dtype} {what}, {threads} thread{'s'[: threads > 1]}"
        report.result(
            name,
            {
                "threads": threads,
                "tokens_per_second": ours,
                "peer_type": against,
                "peer_tokens_per_second": theirs,
                "ratio": ratio,
            },
            f"{ours['median']:7.1f} tok/s  {against:>4} {theirs['median']:7.1f}  "
            f"ratio {ratio['median']:.2f} "
            f"({ratio['quartiles'][0]:.2f} to {ratio['quartiles'][1]:.2f})",
        )
        least = CLAIMS.get((dtype, what), {}).get(threads)
        if report.shape == "0.4B" and least is not None:
            report.claim(f"{name}, times llama.cpp's {against}", ratio["median"], least=least)


if __name__ == "__main__":
    main()
