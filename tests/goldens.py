"""The golden files of the official packages, as far as wkvm's policies cover them.

Their folder holds cases.json files (what ran) and one .safetensors file per case (what came out);
its README.md defines every key. `tests/data` repeats a part of it, for a checkout that stands
alone.
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from conftest import DATA, fixtures_path
from reference import Policy, State
from safetensors.numpy import load_file

ROOT = fixtures_path() or DATA

#: Model name -> its file below ROOT.
MODELS = {
    "tiny7": "rwkv7_tiny/tiny-rwkv7-834K-fp32.safetensors",
    "r7-s128": "rwkv7_synth/r7-s128/model.pth.gz",
    "x128-6p2": "rwkvx/x128-6p2/model.safetensors",
    "x192-4p1": "rwkvx/x192-4p1/model.pth.gz",
    "x256-12p4": "rwkvx/x256-12p4/model.safetensors.gz",
    "x64-5p2-quirk": "rwkvx/x64-5p2-quirk/model.safetensors.gz",
    "x128-v65536": "rwkvx/x128-v65536/model.safetensors.gz",
}


FULL = Policy("full")


@dataclass(frozen=True)
class Case:
    """One run of the official code: `ops` on one fresh state, and what it must give."""

    model: str
    name: str
    ops: tuple[tuple[str, int], ...]  # ("P", k): one call of k tokens; ("D", k): k calls of one
    atol: float  # on logits; the producer's measured fp32-fp64 difference times 20, at least 2e-5
    policy: Policy = FULL
    file: Path | None = None
    tokens: tuple[int, ...] = ()  # of a greedy case, whose file holds nothing else
    greedy_ids: tuple[int, ...] = field(default=(), repr=False)

    @property
    def id(self) -> str:
        return f"{self.model}-{self.policy.name}-{self.name}"

    def arrays(self) -> dict[str, np.ndarray]:
        assert self.file is not None
        return load_file(self.file)

    def calls(self) -> list[int]:
        """The number of tokens of each call, in order."""
        return [n for op, k in self.ops for n in ([k] if op == "P" else [1] * k)]


def model_path(name: str, unpacked: Path) -> Path:
    """The checkpoint of a model, gunzipped into the folder `unpacked` if it must be."""
    path = ROOT / MODELS[name]
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    if path.suffix != ".gz":
        return path
    target = unpacked / f"{name}{Path(path.stem).suffix}"
    if not target.exists():
        with gzip.open(path) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return target


def is_full_attention(calls: list[int], config: dict[str, Any]) -> bool:
    """Whether every call of a run of the `model_old` package attended to all positions."""
    n_cached = 0
    for n in calls:
        if config["enable_kv_cache_management"] and n_cached > config["max_kv_cache_size"]:
            return False  # it compressed its cache
        if n == 1:
            short = n_cached <= config["short_sequence_criteria"]
            mode = config["decoding_attn_mode"]
        else:
            short = n + n_cached <= config["short_sequence_criteria"]
            mode = config["prefill_attn_mode"]
        if not short and mode != "full":
            return False
        n_cached += n
    return True


def rwkv7_cases(model: str, folder: Path) -> Iterator[Case]:
    for entry in json.loads((folder / "cases.json").read_text())["cases"]:
        ops = tuple((op, k) for op, k in entry["ops"])
        yield Case(model, entry["case"], ops, entry["suggested_atol"], file=folder / entry["file"])


def rwkvx_policy(kind: str, config: dict[str, Any]) -> Policy:
    """kind: a case folder's name. The `sparse` package's full attention is our `full`."""
    options = {key: value for key, value in config.items() if key.startswith(kind)}
    return Policy("full" if kind == "sparse" else kind, **options)


def rwkvx_cases(model: str, folder: Path) -> Iterator[Case]:
    for index in sorted(folder.glob("*/cases.json")):
        kind = index.parent.name
        content = json.loads(index.read_text())
        for entry in content["cases"]:
            config = content["configs"][entry["config"]]
            case = Case(
                model,
                entry["case"],
                tuple((op, k) for op, k in entry["ops"]),
                entry["suggested_atol"],
                rwkvx_policy(kind, config),
                index.parent / entry["file"],
            )
            if kind != "sparse" or is_full_attention(case.calls(), config):
                yield case


def rwkvx_greedy_cases(model: str, folder: Path) -> Iterator[Case]:
    """Runs of one prefill and 48 greedy tokens. Their modes name configurations of cases.json."""
    configs = {
        kind: json.loads((folder / kind / "cases.json").read_text())["configs"]
        for kind in ("sparse", "memory")
    }
    for run in json.loads((folder / "greedy.json").read_text())["runs"]:
        kind, config_name = run["mode"].split()[:2]
        config = configs[kind].get(config_name)
        if config is None:
            continue
        ids = run["greedy_ids"]
        case = Case(
            model,
            f"greedy_{kind}_{config_name}",
            (("P", len(run["prompt"])), ("D", len(ids))),
            0.0,
            rwkvx_policy(kind, config),
            tokens=tuple(run["prompt"]),
            greedy_ids=tuple(ids),
        )
        if kind != "sparse" or is_full_attention(case.calls(), config):
            yield case


def all_cases() -> list[Case]:
    """Every case that the policies cover and whose files are here."""
    cases: list[Case] = []
    for model, file in MODELS.items():
        folder = (ROOT / file).parent
        if not folder.is_dir():
            continue
        if model in ("tiny7", "r7-s128"):
            cases += rwkv7_cases(model, folder)
        else:
            cases += rwkvx_cases(model, folder)
            if (folder / "greedy.json").exists():
                cases += rwkvx_greedy_cases(model, folder)
    return [case for case in cases if case.file is None or case.file.exists() or ROOT != DATA]


def travels(case: Case) -> bool:
    """Whether `tests/data` holds this case."""
    if case.file is None:
        return (DATA / MODELS[case.model]).parent.is_dir()
    return (DATA / case.file.relative_to(ROOT)).exists()


def logits_errors(golden: dict[str, np.ndarray], logits: np.ndarray) -> list[float]:
    """Largest absolute differences; logits [n_tokens, V] of the whole run."""
    rows = logits[golden["logits_rows"]].astype(np.float64)
    if "logits" in golden:
        return [np.abs(rows - golden["logits"]).max()]
    top = np.take_along_axis(rows, golden["logits_top_ids"].astype(np.int64), axis=1)
    high = rows.max(axis=1, keepdims=True)
    logsumexp = high[:, 0] + np.log(np.exp(rows - high).sum(axis=1))
    errors = [
        np.abs(top - golden["logits_top_values"]).max(),
        np.abs(rows[:, golden["logits_strided_ids"]] - golden["logits_strided_values"]).max(),
        np.abs(logsumexp - golden["logits_logsumexp"]).max(),
    ]
    if "logits_last_full" in golden:
        errors.append(np.abs(rows[-1:] - golden["logits_last_full"]).max())
    return errors


def state_errors(golden: dict[str, np.ndarray], state: State) -> dict[str, float]:
    """Name -> largest difference relative to max(1, |value|); sums of 64 to D values count 1/10.

    A left-over block, which the official code keeps a state of zeros for, has none here.
    """
    errors = {}
    for key, expected in golden.items():
        if not key.startswith("state.") or key.endswith(".rows"):
            continue
        actual = state_digest(golden, key, state)
        if actual is None:
            actual = np.zeros_like(expected)
        assert actual.shape == expected.shape, key
        is_sum = key.endswith(("_rowsum", "_colsum", ".rowsum"))
        error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
        errors[key] = float(error.max(initial=0)) * (0.1 if is_sum else 1.0)
    return errors


def state_digest(golden: dict[str, np.ndarray], key: str, state: State) -> np.ndarray | None:
    """Our value for a golden's state.KIND.I.WHAT, float64; None if that block does not run."""
    _, kind, i, what = key.split(".", 3)
    name = what.split(".")[0].removesuffix("_rowsum").removesuffix("_colsum")
    if f"{kind}.{i}.{name}" not in state:
        return None
    value = state[f"{kind}.{i}.{name}"].astype(np.float64)
    keep = golden.get(f"memory.{i}.keep_idx")
    if name in ("k_cache", "v_cache") and keep is not None:
        # keep[j] is the position of row j there, in descending surprise; ours ascend in position.
        value = value[np.argsort(np.argsort(keep))]
    if what == "wkv_rowsum":
        return value.sum(axis=2)
    if what == "wkv_colsum":
        return value.sum(axis=1)
    if what.endswith(".rowsum"):
        return value.sum(axis=1)
    if what.endswith(".values"):
        return value[golden[f"state.{kind}.{i}.{name}.rows"]]
    return value
