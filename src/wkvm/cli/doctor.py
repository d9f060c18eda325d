"""``wkvm doctor``: what this machine offers, and whether it computes what it should."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from wkvm import _kernels
from wkvm._engine import Engine, default_threads, isa_list, isa_resolve
from wkvm._version import version
from wkvm.errors import InternalError, WkvmError
from wkvm.formats.load import load_model
from wkvm.hypervisor import policy as policies

_POLICY = "moba"  # the one that a model runs with by default


def doctor(
    *,
    model: Annotated[
        Path | None, typer.Option(help="Also load this checkpoint: how many sessions fit?")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what this machine offers, and check that it computes what it should.

    Exits with 1 if anything is wrong.
    """
    facts: dict[str, Any] = {
        "version": version,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "logical_cpus": len(os.sched_getaffinity(0)),
        "threads": default_threads(),
        "isa_list": isa_list(),
        "WKVM_ISA": os.environ.get("WKVM_ISA"),
        "memory_bytes": _memory("MemTotal"),
        "memory_available_bytes": _memory("MemAvailable"),
    }
    problems: list[str] = []
    with _noting(problems):
        facts["isa"] = isa_resolve()
    with _noting(problems):
        facts["self_check"] = _self_check()
    if model is not None:
        with _noting(problems):
            facts["model"] = _examine(model, facts["memory_available_bytes"])
    facts["problems"] = problems
    print(json.dumps(facts, indent=2) if as_json else _as_text(facts))
    if problems:
        raise typer.Exit(1)


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Turns an error into a line of `problems`."""
    try:
        yield
    except WkvmError as error:
        problems.append(str(error))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # ARM kernels give no name


def _memory(entry: str) -> int:
    """Bytes of an entry of /proc/meminfo, or the limit of this process's cgroup if that is less."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    n_bytes = int(lines[entry].split()[0]) * 1024
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such cgroup, or the word "max"
            n_bytes = min(n_bytes, int(Path("/sys/fs/cgroup", limit).read_text()))
    return n_bytes


def _examine(path: Path, available: int) -> dict[str, Any]:
    """Load a checkpoint, run one token, and count the sessions that fit into the memory left."""
    loaded = load_model(path)
    info = loaded.model.info()
    engine = Engine(
        loaded.model,
        n_slots=1,
        threads=0,
        kv_dtype="fp16",
        policy=_POLICY,
        max_cache_len=policies.DEFAULT_CACHE_LEN,
        **policies.engine_options(policies.resolve(_POLICY, {}, loaded.policy_defaults)),
    )
    engine.forward([(engine.acquire(), [0])], 1)  # raises if a logit is not finite
    weights = sum(data.nbytes for *_, data in loaded.model.tensors())
    left = max(available - weights, 0)
    full = engine.info()["slot_bytes"]
    return {
        "path": str(loaded.path),
        "kind": loaded.kind,
        "dtype": info["dtype"],
        "weights_bytes": weights,
        "empty_session_bytes": info["recurrent_state_bytes"],
        "full_session_bytes": full,
        "max_cache_len": policies.DEFAULT_CACHE_LEN if info["n_attn"] else None,
        "empty_sessions": left // info["recurrent_state_bytes"],
        "full_sessions": left // full,
    }
