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
from wkvm._engine import default_threads, isa_list, isa_resolve
from wkvm._version import version
from wkvm.backends.cpu import DEFAULT_CACHE_LEN, open_backend
from wkvm.errors import InternalError, WkvmError
from wkvm.formats.load import load_model
from wkvm.hypervisor.policy import resolve

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
    backend = open_backend(
        loaded.model,
        n_slots=1,
        threads=None,
        kv_dtype="fp16",
        policy=_POLICY,
        max_cache_len=None,
        **resolve(_POLICY, {}, loaded.policy_defaults),
    )
    backend.forward([(backend.acquire(), [0])], "last")  # raises if anything is not finite
    weights = sum(data.nbytes for *_, data in loaded.model.tensors())
    left = max(available - weights, 0)
    empty, full = info["recurrent_state_bytes"], backend.info()["slot_bytes"]
    return {
        "path": str(loaded.path),
        "kind": loaded.kind,
        "dtype": info["dtype"],
        "weights_bytes": weights,
        "max_cache_len": DEFAULT_CACHE_LEN if info["n_attn"] else None,
        "empty_session_bytes": empty,
        "full_session_bytes": full,
        "empty_sessions": left // empty,
        "full_sessions": left // full,
    }


def _self_check() -> list[str]:
    """The instruction sets, which all multiply matrices to the same bits.

    Raises:
        InternalError: they do not.
    """
    random = np.random.default_rng(0)
    w = random.standard_normal((83, 301), dtype=np.float32)  # [out, in], with tails
    x = random.standard_normal((5, 301), dtype=np.float32)  # [T, in]

    def products(isa: str) -> bytes:
        q, scale = _kernels.quantize(w, isa=isa)
        return b"".join(
            product.tobytes()
            for product in (
                _kernels.matmul(w, x, isa=isa),
                _kernels.matmul(w.astype(np.float16), x, isa=isa),
                _kernels.matmul_i8(q, scale, x, isa=isa),
            )
        )

    expected = products("scalar")
    sets = isa_list()
    wrong = [isa for isa in sets if products(isa) != expected]
    if wrong:
        raise InternalError(
            f"{', '.join(wrong)} and scalar disagree on a product of matrices: the CPU or its "
            "emulation computes wrongly; run with WKVM_ISA=scalar, and report it"
        )
    return sets


def _as_text(facts: dict[str, Any]) -> str:
    """The facts for people, a line each, names aligned."""
    forced = facts["WKVM_ISA"]
    lines = {
        "wkvm": f"{facts['version']}, Python {facts['python']}, {facts['system']}",
        "CPU": f"{facts['cpu']}, {facts['logical_cpus']} logical CPUs for this process",
        "threads": f"{facts['threads']} by default",
        "instruction set": f"{facts.get('isa', 'none')}, of {', '.join(facts['isa_list'])}; "
        + (f"WKVM_ISA={forced}" if forced else "WKVM_ISA is not set"),
        "memory": f"{_mib(facts['memory_available_bytes'])} free of {_mib(facts['memory_bytes'])}",
    }
    if "self_check" in facts:
        lines["self check"] = f"{', '.join(facts['self_check'])}: the same bits"
    if "model" in facts:
        model = facts["model"]
        lines["model"] = f"{model['path']}: {_mib(model['weights_bytes'])} of {model['dtype']}"
        lines["sessions"] = f"{model['empty_sessions']:,} fit beside it"
        if model["max_cache_len"] is not None:
            lines["sessions"] += (
                f" when empty, {model['full_sessions']:,} with {model['max_cache_len']:,} tokens "
                "in the KV cache"
            )
    width = max(map(len, lines))
    problems = [f"error: {problem}" for problem in facts["problems"]]
    return "\n".join([f"{name:<{width}}  {value}" for name, value in lines.items()] + problems)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
