"""Opening a converted int8 file: the time of `wkvm.load`, and memory after the first token.

    python bench/bench_open.py --shape 0.4B

Each round is a fresh process; its imports are not counted. The file is in the page cache.
"""

from __future__ import annotations

import json
import subprocess
import sys

from harness import Report, converted, options, spread

CHILD = """
import json, pathlib, sys, time
import numpy, wkvm
start = time.perf_counter()
model = wkvm.load(sys.argv[1])
opened = time.perf_counter()
logits = model.session().forward([1])
first = time.perf_counter()
assert numpy.isfinite(logits).all()
resident = {
    line.split(":")[0]: int(line.split()[1]) * 1024
    for line in pathlib.Path("/proc/self/status").read_text().splitlines()
    if line.startswith(("VmRSS", "RssAnon", "RssFile"))
}
print(json.dumps({"open": opened - start, "first_token": first - start, "resident": resident}))
"""


def main() -> None:
    args = options(__doc__ or "", shape="0.4B").parse_args()
    report = Report("open", args)
    path = converted(args.dir, args.shape, "int8")
    runs = []
    for _ in range(args.rounds):
        child = subprocess.run(
            [sys.executable, "-c", CHILD, path], check=True, capture_output=True, text=True
        )
        runs.append(json.loads(child.stdout))
    opening = spread([1e3 * run["open"] for run in runs])
    first = spread([1e3 * run["first_token"] for run in runs])
    resident = spread([run["resident"]["VmRSS"] for run in runs])
    file_bytes = path.stat().st_size
    report.result("load, ms", opening, f"{opening['median']:.1f}")
    report.result("load to first logits, ms", first, f"{first['median']:.1f}")
    report.result("file, bytes", file_bytes, f"{file_bytes / 1e6:.1f} MB")
    anonymous = runs[-1]["resident"]["RssAnon"]
    report.result(
        "resident after the first token, bytes",
        {**resident, "anonymous": anonymous},
        f"{resident['median'] / 1e6:.1f} MB, of which {anonymous / 1e6:.1f} MB not the file's",
    )
    if args.shape == "0.4B":
        report.claim("load, ms", opening["median"], most=50)
        report.claim("resident memory over file size", resident["median"] / file_bytes, most=1.2)
    report.finish()


if __name__ == "__main__":
    main()
