"""Decode against the memory: the share of a plain read's bandwidth that a decoded token reaches.

    python bench/bench_decode.py --shape 0.4B

Bytes of a token are those that `wkvm info` prints; a plain read and a run of tokens alternate.
"""

from __future__ import annotations

from functools import partial

import numpy as np
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
from plain_read import N_BYTES, PlainRead

DTYPES = ("int8", "bf16", "fp16")
CLAIMS = {  # shape -> type -> least share, with one thread
    "0.4B": {"int8": 0.80, "bf16": 0.80, "fp16": 0.75},
    "0.1B": {"int8": 0.65, "bf16": 0.65, "fp16": 0.65},
}
CHECKED_TOKENS = 40


def check(engines: dict[str, Ours]) -> None:
    """The float types hold the same values, so their logits are the same bits; int8 is close."""
    tokens = prompt(CHECKED_TOKENS, engines["fp16"].out.size)
    expected = engines["fp16"].logits(tokens)
    for dtype, engine in engines.items():
        whole = engine.logits(tokens)
        engine.decode(tokens)
        require(whole.tobytes() == engine.out.tobytes(), f"{dtype}: decode differs from prefill")
    require(
        engines["bf16"].logits(tokens).tobytes() == expected.tobytes(), "bf16 differs from fp16"
    )
    int8 = agreement(expected, engines["int8"].logits(tokens))
    # Symmetric int8 costs about 1e-3 on these models; a wrong scale costs orders more.
    require(int8["kl"] <= 1e-2, f"int8 is far from fp16: {int8}")


def main() -> None:
    parser = options(__doc__ or "", shape="0.4B")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=32, help="decoded in one turn")
    args = parser.parse_args()
    report = Report("decode", args)
    files = {dtype: converted(args.dir, args.shape, dtype) for dtype in DTYPES}
    read = PlainRead()

    for threads in args.threads:
        engines = {dtype: Ours(path, threads) for dtype, path in files.items()}
        report.fact("isa", engines["int8"].model.isa)
        check(engines)
        for dtype, engine in engines.items():
            tokens = prompt(args.tokens, engine.out.size)
            n_bytes = engine.model.info["bytes_per_token"]
            seconds = alternate(
                {
                    "read": partial(read.seconds, threads),
                    "decode": partial(engine.decode, tokens),
                },
                args.rounds,
            )
            decoded = n_bytes * args.tokens / np.array(seconds["decode"])
            plain = N_BYTES / np.array(seconds["read"])
            share = spread(ratios(decoded.tolist(), plain.tolist()))
            speed = spread((args.tokens / np.array(seconds["decode"])).tolist())
            name = f"{dtype}, {threads} thread{'s'[: threads > 1]}"
            report.result(
                name,
                {
                    "threads": threads,
                    "bytes_per_token": n_bytes,
                    "tokens_per_second": speed,
                    "plain_read_bytes_per_second": spread(plain.tolist()),
                    "share": share,
                },
                f"{speed['median']:7.1f} tok/s  {np.median(decoded) / 1e9:5.1f} of "
                f"{np.median(plain) / 1e9:5.1f} GB/s  share {share['median']:.2f} "
                f"({share['quartiles'][0]:.2f} to {share['quartiles'][1]:.2f})",
            )
            least = CLAIMS.get(args.shape, {}).get(dtype)
            if threads == 1 and least is not None:
                report.claim(f"{name}: share of a plain read", share["median"], least=least)
    report.finish()


if __name__ == "__main__":
    main()
