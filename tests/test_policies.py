"""What each attention policy lets a query see, bit for bit and against the slow truth."""

import checkpoint_files
import engines
import numpy as np
import pytest
import reference
from reference import Policy, Reference

import wkvm
from wkvm.errors import WkvmError

# No block choice of this prompt is so close that float32 could decide it otherwise: checked below.
PROMPT = engines.tokens(400, seed=12)


@pytest.fixture(scope="module")
def load(checkpoint):
    def load(**options):
        options = {"dtype": "fp32", "kv_dtype": "fp32", "n_slots": 2, **options}
        return wkvm.load(checkpoint("x128-6p2"), **options)

    return load


@pytest.fixture(scope="module")
def weights(checkpoint):
    return checkpoint_files.weights(checkpoint("x128-6p2"))


@pytest.mark.parametrize("kv_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize(("chunk_size", "topk"), [(16, 3), (16, 1), (7, 5), (100, 2)])
def test_moba_is_full_while_there_are_at_most_k_blocks(load, kv_dtype, chunk_size, topk):
    n = chunk_size * topk
    full = load(kv_dtype=kv_dtype, policy="full").session()
    moba = load(
        kv_dtype=kv_dtype, policy="moba", moba_chunk_size=chunk_size, moba_topk=topk
    ).session()
    bits = engines.run_bits(moba, PROMPT[:n])
    assert engines.differing(bits, engines.run_bits(full, PROMPT[:n])) == []
    # The next blocks do not all fit: the policies part.
    rest = PROMPT[n : n + 3 * chunk_size]
    assert engines.run(moba, rest).tobytes() != engines.run(full, rest).tobytes()


@pytest.mark.parametrize("kv_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize(("sinks", "size"), [(4, 24), (0, 16), (2, 40), (40, 1), (3, 300)])
def test_window_is_full_while_the_window_holds_the_prompt(load, kv_dtype, sinks, size):
    # Position p loses sight of the position `sinks` when p - size reaches it.
    n = sinks + size
    full = load(kv_dtype=kv_dtype, policy="full").session()
    window = load(
        kv_dtype=kv_dtype, policy="window", window_sinks=sinks, window_size=size
    ).session()
    bits = engines.run_bits(window, PROMPT[:n])
    assert engines.differing(bits, engines.run_bits(full, PROMPT[:n])) == []
    next_token = PROMPT[n : n + 1]
    assert window.forward(next_token).tobytes() != full.forward(next_token).tobytes()


@pytest.mark.parametrize("policy", ["full", "moba", "window", "memory"])
def test_pure_rwkv7_takes_any_policy_and_uses_none(checkpoint, policy):
    path = checkpoint("r7-s128")
    bits = [
        engines.run_bits(wkvm.load(path, n_slots=1, **options).session(), PROMPT)
        for options in ({}, {"policy": policy})
    ]
    assert engines.differing(*bits) == []


# ---------------------------------------------------------------- against the slow truth

# The goldens' measured fp32-fp64 differences on this model are below 1e-5, where no choice hangs
# on them; 20 times that, as their own tolerances have it.
ATOL = 2e-4

# A prompt in several calls: single tokens, and calls that one pass of 256 tokens does not end.
CALLS = [129, 1, 100, 1, 1, 168]


def meets_reference(session, model: Reference, calls, prompt=PROMPT) -> None:
    """Logits of every token and the final state agree, for a prompt fed in `calls`."""
    state, done = model.new_state(), 0
    for n in calls:
        part = prompt[done : done + n]
        error = np.abs(session.forward(part, logits="all") - model.forward(part, state)).max()
        assert error <= ATOL, f"after {done} tokens"
        done += n
    actual = session.state()
    if model.policy.name == "window":
        holds = reference.window_holds(done, model.policy)
        state = {k: v[holds] if k.endswith("_cache") else v for k, v in state.items()}
    for name, expected in state.items():
        assert actual[name].shape == expected.shape, name
        if expected.size:
            error = np.abs(actual[name] - expected) / np.maximum(1, np.abs(expected))
            assert error.max() <= ATOL, name


def test_full_meets_the_reference(load, weights):
    meets_reference(load(policy="full").session(), Reference(weights), CALLS)


def smallest_gate_margin(monkeypatch) -> list[float]:
    """Records, for every query, how clearly its worst chosen block beats its best rejected one."""
    margins = []
    plain = reference.visible_moba

    def recording(q, keys, policy):
        size = policy.moba_chunk_size
        for t in range(len(q)):
            own = (len(keys) - len(q) + t) // size
            if own < policy.moba_topk:
                continue
            blocks = keys[: own * size].reshape(own, size, *keys.shape[1:]).mean(axis=1)
            score = -np.sort(-np.einsum("hn,bhn->hb", q[t], blocks), axis=1)
            if policy.moba_topk > 1:
                gap = score[:, policy.moba_topk - 2] - score[:, policy.moba_topk - 1]
                margins.append(float((gap / np.abs(score).max(axis=1)).min()))
        return plain(q, keys, policy)

    monkeypatch.setattr(reference, "visible_moba", recording)
    return margins


@pytest.mark.parametrize("blocks", [(16, 3), (33, 2), (7, 4), (50, 1)])
def test_moba_meets_the_reference(load, weights, monkeypatch, blocks):
    margins = smallest_gate_margin(monkeypatch)
    options = {"moba_chunk_size": blocks[0], "moba_topk": blocks[1]}
    policy = Policy("moba", **options)
    session = load(policy="moba", **options).session()
    meets_reference(session, Reference(weights, policy), CALLS)
    assert bool(margins) == (blocks[1] > 1)  # with one block there is nothing to choose
    assert np.min(margins, initial=1.0) >= 2e-5  # unlike min(), it keeps a NaN


def test_moba_breaks_ties_towards_the_earlier_block(checkpoint, tmp_path):
    path = checkpoint_files.write_edited(
        checkpoint("x128-6p2"), tmp_path / "model.safetensors", checkpoint_files.equal_keys
    )
    options = {"moba_chunk_size": 16, "moba_topk": 3}
    session = wkvm.load(path, kv_dtype="fp32", n_slots=1, policy="moba", **options).session()
    model = Reference(checkpoint_files.weights(path), Policy("moba", **options))
    meets_reference(session, model, CALLS)


@pytest.mark.parametrize(("sinks", "size"), [(4, 24), (0, 16), (0, 1), (5, 100)])
def test_window_meets_the_reference(load, weights, sinks, size):
    policy = Policy("window", window_sinks=sinks, window_size=size)
    session = load(policy="window", window_sinks=sinks, window_size=size).session()
    meets_reference(session, Reference(weights, policy), CALLS)


# A slot's ring has room for sinks, window, and the 256 tokens of one pass.
LONG = engines.tokens(960, seed=13)
LONG_OPTIONS = {"window_sinks": 4, "window_size": 24}


def test_a_window_that_has_wrapped_its_ring_thrice_meets_the_reference(load, weights):
    assert len(LONG) > 3 * (4 + 24 + 256)
    session = load(policy="window", **LONG_OPTIONS).session()
    model = Reference(weights, Policy("window", **LONG_OPTIONS))
    meets_reference(session, model, [300, 1, 255, 1, 1, 402], LONG)


@pytest.mark.parametrize("kv_dtype", ["fp16", "fp32"])
def test_a_window_that_has_wrapped_its_ring_thrice_is_blind_to_the_cut(load, kv_dtype):
    model = load(policy="window", kv_dtype=kv_dtype, **LONG_OPTIONS)
    bits = []
    for chunk in (None, 1, 67, 256):
        with model.session() as session:
            bits.append(engines.run_bits(session, LONG, chunk))
    for other in bits[1:]:
        assert engines.differing(other, bits[0]) == []


@pytest.mark.parametrize("keep", [{"memory_keep_tokens": 16}, {"memory_keep_ratio": 0.29}], ids=str)
@pytest.mark.parametrize("calls", [[400], CALLS, [1] * 10], ids=str)
def test_memory_meets_the_reference(load, weights, keep, calls):
    model = Reference(weights, Policy("memory", **keep))
    meets_reference(load(policy="memory", **keep).session(), model, calls)


@pytest.mark.parametrize("policy", ["full", "moba", "window"])
def test_a_float16_cache_is_read_as_it_is_stored(load, weights, policy):
    options = {
        "full": {},
        "moba": {"moba_chunk_size": 16, "moba_topk": 3},
        "window": {"window_sinks": 4, "window_size": 24},
    }[policy]
    session = load(kv_dtype="fp16", policy=policy, **options).session()
    model = Reference(weights, Policy(policy, **options), kv_type=np.float16)
    exact = Reference(weights, Policy(policy, **options))
    prompt = PROMPT[:60]
    actual = engines.run(session, prompt)
    rounded = model.forward(prompt, model.new_state())
    unrounded = exact.forward(prompt, exact.new_state())
    for value in session.state().values():
        assert value.dtype in (np.float32, np.float16)
    assert session.state()["attn.0.k_cache"].dtype == np.float16
    error = np.sqrt(((actual - rounded) ** 2).mean())
    effect = np.sqrt(((unrounded - rounded) ** 2).mean())
    # A key within float32's error of a rounding boundary may fall on the other side; that is rare,
    # so the distance is a small part of what the rounding as a whole does.
    assert error <= 0.2 * effect


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "sliding"},
        {"policy": "moba", "moba_chunk_size": 0},
        {"policy": "moba", "moba_topk": 0},
        {"policy": "moba", "moba_topk": -1},
        {"policy": "window", "window_size": 0},
        {"policy": "window", "window_sinks": -1},
        {"policy": "memory", "memory_keep_tokens": 0},
        {"policy": "memory", "memory_keep_ratio": 1.5},
        {"policy": "memory", "memory_keep_ratio": -0.5},
        {"policy": "memory", "memory_keep_ratio": float("nan")},
        {"policy": "full", "max_cache_len": 0},
        {"policy": "moba", "surprise": 3},
        {"n_slots": 0},
        {"n_slots": -1},
        {"threads": -1},
        {"kv_dtype": "int8"},
        {"dtype": "fp8"},
        {"device": "abacus"},
    ],
    ids=str,
)
def test_an_impossible_option_is_refused(checkpoint, options):
    with pytest.raises(WkvmError):
        wkvm.load(checkpoint("x128-6p2"), **options)
