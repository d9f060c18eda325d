"""The slow truth agrees with the official packages, so that it can stand in for them."""

import json
from functools import cache
from pathlib import Path

import checkpoint_files
import goldens
import numpy as np
import pytest
from reference import Reference, Weights, quantise
from safetensors.numpy import load_file

# The cases that travel with the code, always; all of them, in a slow run.
CASES = [
    pytest.param(case, id=case.id, marks=() if goldens.travels(case) else pytest.mark.slow)
    for case in goldens.all_cases()
]


@pytest.fixture(scope="module")
def weights(unpacked: Path):
    @cache
    def load(model: str) -> Weights:
        return checkpoint_files.weights(goldens.model_path(model, unpacked))

    return load


def run(model: Reference, tokens, calls) -> tuple[np.ndarray, dict]:
    state, logits, done = model.new_state(), [], 0
    for n in calls:
        logits.append(model.forward(list(tokens[done : done + n]), state))
        done += n
    return np.concatenate(logits), state


def greedy(model: Reference, prompt, n: int) -> list[int]:
    state = model.new_state()
    ids = [int(model.forward(list(prompt), state)[-1].argmax())]
    while len(ids) < n:
        ids.append(int(model.forward(ids[-1:], state)[-1].argmax()))
    return ids


@pytest.mark.parametrize("case", CASES)
def test_reference_meets_the_golden_file(case, weights):
    model = Reference(weights(case.model), case.policy)
    if case.file is None:
        assert greedy(model, case.tokens, len(case.greedy_ids)) == list(case.greedy_ids)
        return
    golden = case.arrays()
    logits, state = run(model, golden["tokens"], case.calls())
    for error in goldens.logits_errors(golden, logits):
        assert error <= case.atol
    for name, error in goldens.state_errors(golden, state).items():
        assert error <= case.atol, name
    if "greedy_ids" in golden:
        ids = golden["greedy_ids"].tolist()
        assert greedy(model, golden["tokens"], len(ids)) == ids


def test_reference_quantises_as_the_golden_matrices_say(fixtures):
    golden = load_file(fixtures / "int8" / "matrices.safetensors")
    for case in json.loads((fixtures / "int8" / "matrices.json").read_text())["cases"]:
        name = case["name"]
        q, scale = quantise(golden[f"{name}.w"])
        assert (scale[:, 0] == golden[f"{name}.scale"]).all(), name
        assert (q == golden[f"{name}.q"]).all(), name
