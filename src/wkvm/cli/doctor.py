"""``wkvm doctor``: what this machine offers, and whether it computes what it should."""

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from wkvm import _kernels
from wkvm._engine import Tokenizer, default_threads, isa_list, isa_resolve
from wkvm._version import version
from wkvm.backends.cpu import DEFAULT_CACHE_LEN, open_backend
from wkvm.bundled import bundled_model_path
from wkvm.errors import InternalError, WkvmError
from wkvm.formats.load import load_model
from wkvm.formats.vocabulary import recorded_tokenizer
from wkvm.hypervisor.generation import END_OF_TEXT
from wkvm.hypervisor.model import load
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
    memory, available = memory_bytes()
    facts: dict[str, Any] = {
        "version": version,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "logical_cpus": len(os.sched_getaffinity(0)),
        "threads": default_threads(),
        "isa_list": isa_list(),
        "WKVM_ISA": os.environ.get("WKVM_ISA"),
        "memory_bytes": memory,
        "memory_available_bytes": available,
    }
    problems: list[str] = []
    with _noting(problems):
        facts["isa"] = isa_resolve()
    with _noting(problems):
        facts["self_check"] = _self_check()
    with _noting(problems):
        facts["bundled_model"] = _examine_bundled()
    if model is not None:
        with _noting(problems):
            facts["model"] = _examine(model, facts["memory_available_bytes"])
    facts["problems"] = problems
    print(json.dumps(facts, indent=2) if as_json else _as_text(facts))
    if problems:
        raise typer.Exit(1)


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Turns an error into a line of `problems`, if none is the same."""
    try:
        yield
    except WkvmError as error:
        if str(error) not in problems:
            problems.append(str(error))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # ARM kernels give no name


def memory_bytes(root: Path = Path("/")) -> tuple[int, int]:
    """The memory that this process may use, and what is left of it now.

    Both are the machine's, or those of the tightest cgroup that the process is in: its own, or one
    of those around it.

    Args:
        root: of the file system; tests give another one.
    """
    lines = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    in_all, left = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for limit, used in _cgroup_limits(root):
        in_all, left = min(in_all, limit), min(left, max(limit - used, 0))
    return in_all, left


def _cgroup_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use) of this process's cgroups that have a limit, up to the root one."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # a kernel without cgroups
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":  # version 2
            mount, limit, used = "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount = "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            folder = root / mount / group.relative_to("/")
            # A container may not see its cgroup's files; the limit may be the word "max".
            with suppress(OSError, ValueError):
                yield int((folder / limit).read_text()), int((folder / used).read_text())


def _examine(path: Path, available: int) -> dict[str, Any]:
    """Load a checkpoint, run one token, and count the sessions that fit into the memory left."""
    loaded = load_model(path)
    info = loaded.model.info()
    recorded_tokenizer(loaded.path, loaded.metadata, info["n_vocab"], Tokenizer)  # if it is sound
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


def _examine_bundled() -> dict[str, Any]:
    """Load the model that comes with wkvm, as users do, and run one token."""
    path = bundled_model_path()
    model = load(n_slots=1)
    model.session().forward([END_OF_TEXT])  # raises if anything is not finite
    return {
        "path": str(path),
        "file_bytes": path.stat().st_size,
        "n_params": model.info["n_params"],
        "dtype": model.info["dtype"],
    }


def _self_check() -> dict[str, list[str]]:
    """The instruction sets, and the kernels for which all of them give the bits of scalar.

    Raises:
        InternalError: they do not.
    """
    random = np.random.default_rng(0)

    def floats(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape, dtype=np.float32)

    x, w = floats(5, 301), floats(83, 301)  # [T, in], [out, in], with tails
    per_token = ("r", "k", "v", "w_lora", "a_lora", "g")
    per_head = ("w0", "a0", "k_k", "k_a", "r_k", "ln_weight", "ln_bias")
    head: dict[str, Any] = {name: floats(5, 32) for name in per_token}  # [T, N]
    head |= {name: floats(32) for name in per_head} | {"state": floats(32, 32)}
    query = floats(32)
    cache = {name: floats(37, 32).astype(np.float16) for name in ("k", "v")}  # [T, N]

    def int8(isa: str) -> NDArray[np.float32]:
        q, scale = _kernels.quantize(w, isa=isa)
        return _kernels.matmul_i8(q, scale, x, isa=isa)

    def time_mix(isa: str) -> NDArray[np.float32]:
        return np.concatenate(_kernels.time_mix(**head, isa=isa))

    checks: dict[str, Callable[[str], NDArray[np.float32]]] = {
        "exp": lambda isa: _kernels.exp(x, isa=isa),
        "fp32 matrices": lambda isa: _kernels.matmul(w, x, isa=isa),
        "fp16 matrices": lambda isa: _kernels.matmul(w.astype(np.float16), x, isa=isa),
        "int8 matrices": int8,
        "time mix": time_mix,
        "attention": lambda isa: _kernels.attention(query, **cache, isa=isa),
    }
    sets = isa_list()
    for what, compute in checks.items():
        expected = compute("scalar").tobytes()
        wrong = [isa for isa in sets if compute(isa).tobytes() != expected]
        if wrong:
            raise InternalError(
                f"{', '.join(wrong)} and scalar disagree on {what}: the CPU or its emulation "
                "computes wrongly; run with WKVM_ISA=scalar, and report it"
            )
    return {"isa_list": sets, "kernels": list(checks)}


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
        check = facts["self_check"]
        lines["self check"] = (
            f"{', '.join(check['isa_list'])}: the same bits for {', '.join(check['kernels'])}"
        )
    if "bundled_model" in facts:
        bundled = facts["bundled_model"]
        lines["bundled model"] = (
            f"{_mib(bundled['file_bytes'])}, {bundled['n_params']:,} parameters, "
            f"{bundled['dtype']}: loads and runs"
        )
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
