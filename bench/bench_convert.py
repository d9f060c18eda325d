"""Peak memory of converting a BlinkDL .pth to int8.

    python bench/bench_convert.py --shape 1.5B

The .pth is written in bounded memory first, if it is not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from checkpoints import checkpoint
from harness import Report, options

ALLOWANCE = 512 << 20  # bytes beyond the size of the output


def main() -> None:
    args = options(__doc__ or "", shape="1.5B").parse_args()
    report = Report("convert", args)
    source = checkpoint(args.dir, args.shape, "bf16", "pth")
    path = args.dir / f"rwkv7-{args.shape}-int8.wkvm.safetensors"
    path.unlink(missing_ok=True)
    # The child's high-water mark includes that of the process it was forked from; this one is
    # small: the checkpoint was written in bounded memory.
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "wkvm", "convert", source, path, "--dtype", "int8"],
        stdout=sys.stderr,
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"wkvm convert failed with status {child.returncode}")
    peak, written = usage.ru_maxrss * 1024, path.stat().st_size
    report.result("input, bytes", source.stat().st_size, f"{source.stat().st_size / 1e6:.1f} MB")
    report.result("output, bytes", written, f"{written / 1e6:.1f} MB")
    report.result("peak resident, bytes", peak, f"{peak / 1e6:.1f} MB")
    report.result("time, s", seconds, f"{seconds:.1f}")
    report.claim("peak beyond the output, MiB", (peak - written) / 2**20, most=ALLOWANCE / 2**20)
    report.finish()


if __name__ == "__main__":
    main()
