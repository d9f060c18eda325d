"""What Python adds to one decode step: `session.forward` minus the time inside wkvm_forward.

    python bench/bench_step.py

The engine's own counter tells the time inside.
"""

from __future__ import annotations

import time

from harness import Report, converted, options, prompt, spread
from ours import Ours

STEPS = 400


def main() -> None:
    args = options(__doc__ or "", shape="0.1B").parse_args()
    report = Report("step", args)
    engine = Ours(converted(args.dir, args.shape, "int8"), threads=1)
    report.fact("isa", engine.model.isa)
    forward, out, stats = engine.session.forward, engine.out, engine.model.stats
    added, inside = [], []  # microseconds
    for token in prompt(STEPS, out.size):
        before = stats()
        start = time.perf_counter_ns()
        forward([token], out=out)
        whole = time.perf_counter_ns() - start
        after = stats()
        if after["n_forward"] != before["n_forward"] + 1:
            raise SystemExit("one step is not one call of wkvm_forward")
        native = after["forward_nanoseconds"] - before["forward_nanoseconds"]
        added.append((whole - native) / 1e3)
        inside.append(native / 1e3)
    native, python = spread(inside), spread(added)
    report.result("inside wkvm_forward, us", native, f"{native['median']:.1f}")
    report.result("added by Python, us", python, f"{python['median']:.1f}")
    report.claim("added to one step, us", python["median"], most=30)
    report.finish()


if __name__ == "__main__":
    main()
