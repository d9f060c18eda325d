"""The engine meets the golden files of the official packages, in fp32 with an fp32 KV cache."""

from functools import lru_cache

import goldens
import numpy as np
import pytest

import wkvm

CASES = goldens.all_cases()


def policy_options(policy) -> dict:
    """What `wkvm.load` is told of a reference policy: the options of that policy."""
    options = {key: value for key, value in vars(policy).items() if key.startswith(policy.name)}
    if policy.name == "memory":
        del options["memory_keep_tokens" if policy.memory_keep_ratio else "memory_keep_ratio"]
    return {"policy": policy.name, **options}


@pytest.fixture(scope="module")
def new_session(checkpoint):
    @lru_cache(maxsize=1)  # cases of one model and policy follow each other
    def model(name, policy):
        return wkvm.load(checkpoint(name), dtype="fp32", kv_dtype="fp32", **policy_options(policy))

    def session(case):
        session = model(case.model, case.policy).session()
        session.reset()
        return session

    return session


def run(session, tokens, calls) -> np.ndarray:
    logits, done = [], 0
    for n in calls:
        logits.append(session.forward(tokens[done : done + n], logits="all"))
        done += n
    return np.concatenate(logits)


def greedy(session, prompt, n: int) -> list[int]:
    ids = [int(session.forward(prompt).argmax())]
    while len(ids) < n:
        ids.append(int(session.forward(ids[-1:]).argmax()))
    return ids


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_engine_meets_the_golden_file(case, new_session):
    with new_session(case) as session:
        if case.file is None:
            assert greedy(session, case.tokens, len(case.greedy_ids)) == list(case.greedy_ids)
            return
        golden = case.arrays()
        tokens = golden["tokens"].tolist()
        logits = run(session, tokens, case.calls())
        for error in goldens.logits_errors(golden, logits):
            assert error <= case.atol
        for name, error in goldens.state_errors(golden, session.state()).items():
            assert error <= case.atol, name
        if "greedy_ids" in golden:
            session.reset()
            ids = golden["greedy_ids"].tolist()
            assert greedy(session, tokens, len(ids)) == ids


def test_no_covered_case_is_missing(fixtures):
    # 12 of pure RWKV-7; of RWKV-X: 36 full, 4 moba, 3 window, 37 memory, 12 greedy.
    assert len(CASES) == 104


def test_a_nan_would_not_pass():
    golden = {"logits_rows": np.array([0]), "logits": np.zeros((1, 4), np.float32)}
    (error,) = goldens.logits_errors(golden, np.array([[0, np.nan, 0, 0]], np.float32))
    assert not error <= 1.0
    golden = {"state.rwkv.0.ffn_x_prev": np.zeros(2, np.float32)}
    state = {"rwkv.0.ffn_x_prev": np.array([np.nan, 0], np.float32)}
    (error,) = goldens.state_errors(golden, state).values()
    assert not error <= 1.0
