"""A slot is a place, a snapshot is a value: states that continue as if nothing had happened."""

import threading
from functools import cache

import engines
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wkvm

PROMPT = engines.tokens(300, seed=3)

SETUPS = {
    "rwkv7": ("r7-s128", {}),
    "full": ("x128-6p2", {"policy": "full"}),
    "moba": ("x128-6p2", {"policy": "moba", "moba_chunk_size": 16, "moba_topk": 3}),
    "window": ("x128-6p2", {"policy": "window", "window_sinks": 4, "window_size": 24}),
    "memory": ("x128-6p2", {"policy": "memory", "memory_keep_tokens": 16}),
}
every_setup = pytest.mark.parametrize("setup", SETUPS)


@pytest.fixture(scope="module")
def load(checkpoint):
    def load(setup, **options):
        name, policy = SETUPS[setup]
        return wkvm.load(checkpoint(name), **{"n_slots": 3, **policy, **options})

    return load


@pytest.fixture(scope="module")
def shared_model(load):
    return cache(load)


# ---------------------------------------------------------------- what a session shows


def test_the_state_has_the_documented_tensors(load):
    model = load("full", kv_dtype="fp16")
    session = model.session()
    session.forward(PROMPT[:10])
    state = session.state()
    shapes = {}
    for i in range(6):
        shapes[f"rwkv.{i}.att_x_prev"] = ("float32", (128,))
        shapes[f"rwkv.{i}.wkv"] = ("float32", (2, 64, 64))
        shapes[f"rwkv.{i}.ffn_x_prev"] = ("float32", (128,))
    for i in range(2):
        shapes[f"attn.{i}.k_cache"] = ("float16", (10, 128))
        shapes[f"attn.{i}.v_cache"] = ("float16", (10, 128))
        shapes[f"attn.{i}.ffn_x_prev"] = ("float32", (128,))
    actual = {name: (str(value.dtype), value.shape) for name, value in state.items()}
    assert actual == shapes


def test_a_state_is_a_copy(load):
    session = load("full").session()
    session.forward(PROMPT[:10])
    before = engines.state_bits(session)
    for value in session.state().values():
        value[...] = 7
    assert engines.differing(engines.state_bits(session), before) == []


@every_setup
def test_a_new_session_is_zero_and_so_is_a_reset_one(load, setup):
    session = load(setup).session()
    fresh = engines.state_bits(session)
    assert not any(value.any() for value in session.state().values())
    first = engines.run_bits(session, PROMPT[:50])
    session.reset()
    assert list(session.tokens) == []
    assert engines.differing(engines.state_bits(session), fresh) == []
    assert engines.differing(engines.run_bits(session, PROMPT[:50]), first) == []


def test_tokens_are_those_that_ran(load):
    session = load("moba").session()
    session.forward(PROMPT[:5])
    session.forward(PROMPT[5:6], logits="all")
    session.forward(PROMPT[6:20], logits="none")
    assert list(session.tokens) == PROMPT[:20]


@every_setup
def test_a_reused_slot_starts_from_zero(load, setup):
    model = load(setup, n_slots=1)
    with model.session() as session:
        first = engines.run_bits(session, PROMPT[:100])
    with model.session() as session:
        assert not any(value.any() for value in session.state().values())
        assert engines.differing(engines.run_bits(session, PROMPT[:100]), first) == []


def test_logits_go_where_out_says(load):
    session = load("full").session()
    out = np.full(512, np.nan, np.float32)
    assert session.forward(PROMPT[:3], out=out) is out
    session.reset()
    assert session.forward(PROMPT[:3]).tobytes() == out.tobytes()
    session.reset()
    every = np.full((3, 512), np.nan, np.float32)
    assert session.forward(PROMPT[:3], logits="all", out=every) is every
    assert every[-1].tobytes() == out.tobytes()


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64, np.uint16])
def test_tokens_may_be_any_integer_array(load, dtype):
    model = load("rwkv7")
    a, b = model.session(), model.session()
    assert a.forward(PROMPT[:9]).tobytes() == b.forward(np.array(PROMPT[:9], dtype)).tobytes()
    assert list(a.tokens) == list(b.tokens)


# ---------------------------------------------------------------- fork, snapshot, resume

# What happens to a session between the tokens of a prompt.
detours = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.sampled_from(["go on", "fork", "snapshot", "save", "other tokens, then back"]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("setup", ["rwkv7", "full", "moba", "window"])
@given(plan=detours)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_detour_continues_with_the_same_bits(shared_model, tmp_path, setup, plan):
    model = shared_model(setup)
    session = model.session()
    done, logits = 0, []
    try:
        for n, detour in plan:
            logits.append(session.forward(PROMPT[done : done + n], logits="all"))
            done = min(done + n, len(PROMPT))
            session = take(detour, model, session, tmp_path)
            if done == len(PROMPT):
                break
        bits = {"logits": np.concatenate(logits).tobytes(), **engines.state_bits(session)}
        assert list(session.tokens) == PROMPT[:done]
    finally:
        session.close()
    with model.session() as plain:
        assert engines.differing(bits, engines.run_bits(plain, PROMPT[:done])) == []


def take(detour, model, session, folder):
    """The session, or its continuation, after the detour."""
    if detour == "go on":
        return session
    if detour == "fork":
        twin = session.fork()
    elif detour == "snapshot":
        twin = model.resume(session.snapshot())
    elif detour == "save":
        session.save(folder / "state.safetensors", overwrite=True)
        twin = model.resume(folder / "state.safetensors")
    else:
        snapshot = session.snapshot()
        session.forward([1, 2, 3] * 30, logits="none")
        twin = model.resume(snapshot)
    session.close()
    return twin


@every_setup
def test_a_fork_and_its_origin_do_not_touch_each_other(load, setup):
    model = load(setup)
    session = model.session()
    session.forward(PROMPT[:50], logits="none")
    twin = session.fork()
    assert list(twin.tokens) == list(session.tokens)
    other = engines.tokens(40, seed=99)
    mine, its = PROMPT[50:90], other
    bits = engines.run_bits(session, mine, 1)
    twin_bits = engines.run_bits(twin, its, 1)
    session.reset()
    session.forward(PROMPT[:50], logits="none")
    assert engines.differing(engines.run_bits(session, its, 1), twin_bits) == []
    twin.reset()
    twin.forward(PROMPT[:50], logits="none")
    assert engines.differing(engines.run_bits(twin, mine, 1), bits) == []


@every_setup
def test_a_snapshot_outlives_its_session_and_resumes_many_times(load, setup):
    model = load(setup)
    with model.session() as session:
        session.forward(PROMPT[:70], logits="none")
        snapshot = session.snapshot()
        rest = engines.run_bits(session, PROMPT[70:100], 1)
    for _ in range(2):
        with model.resume(snapshot) as session:
            assert list(session.tokens) == PROMPT[:70]
            assert engines.differing(engines.run_bits(session, PROMPT[70:100], 1), rest) == []


@every_setup
def test_a_saved_state_resumes_in_another_engine(load, tmp_path, setup):
    path = tmp_path / "state.safetensors"
    session = load(setup, threads=1).session()
    session.forward(PROMPT[:70], logits="none")
    session.save(path)
    rest = engines.run_bits(session, PROMPT[70:100], 1)
    session = load(setup, threads=2).resume(path)
    assert engines.differing(engines.run_bits(session, PROMPT[70:100], 1), rest) == []


def test_saving_the_same_state_twice_gives_the_same_file(load, tmp_path):
    session = load("moba").session()
    session.forward(PROMPT[:70], logits="none")
    session.save(tmp_path / "a")
    session.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_empty_session_forks_and_resumes(load, tmp_path):
    model = load("moba")
    session = model.session()
    session.save(tmp_path / "state")
    for twin in (session.fork(), model.resume(tmp_path / "state")):
        assert list(twin.tokens) == []
    expected = engines.run_bits(session, PROMPT[:20])
    assert engines.differing(engines.run_bits(twin, PROMPT[:20]), expected) == []


# ---------------------------------------------------------------- generation


def test_greedy_generation_is_the_argmax_of_forward(load):
    model = load("full", vocab="bytes")
    session, manual = model.session(), model.session()
    session.forward(PROMPT[:20])
    for _ in session.generate(max_tokens=12, temperature=0, ignore_eos=True):
        pass
    logits = manual.forward(PROMPT[:20])
    for _ in range(12):
        token = int(logits.argmax())
        logits = manual.forward([token])
    assert session.tokens == manual.tokens
    # The last token has been sampled, not run; what comes next runs it first.
    assert session.forward([5]).tobytes() == manual.forward([5]).tobytes()
    assert engines.differing(engines.state_bits(session), engines.state_bits(manual)) == []


@pytest.mark.parametrize("detour", ["go on", "fork", "snapshot", "save"])
@pytest.mark.parametrize("n_first", [1, 7])
def test_sampling_goes_on_through_any_detour(load, tmp_path, detour, n_first):
    model = load("moba", vocab="bytes")
    options = {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.3, "ignore_eos": True}

    def generate(session, n, **seed):
        for _ in session.generate(max_tokens=n, **options, **seed):
            pass

    whole = model.session()
    whole.forward(PROMPT[:30])
    generate(whole, 20, seed=11)

    session = model.session()
    session.forward(PROMPT[:30])
    generate(session, n_first, seed=11)
    session = take(detour, model, session, tmp_path)
    generate(session, 20 - n_first)
    assert session.tokens == whole.tokens
    assert session.logits().tobytes() == whole.logits().tobytes()
    assert engines.differing(engines.state_bits(session), engines.state_bits(whole)) == []


def test_a_refused_call_leaves_the_pending_token_pending(load):
    model = load("full", vocab="bytes", max_cache_len=40)
    session = model.session()
    session.forward(PROMPT[:30])
    for _ in session.generate(max_tokens=2, temperature=0, ignore_eos=True):
        pass
    tokens, pending, state = session.tokens, session.pending, engines.state_bits(session)
    assert pending is not None
    for refused in ([512], [], engines.tokens(20)):
        with pytest.raises(wkvm.WkvmError):
            session.forward(refused)
        assert session.tokens == tokens
        assert session.pending == pending
        assert engines.differing(engines.state_bits(session), state) == []
    plain = model.session()
    plain.forward(tokens)
    assert session.forward([3]).tobytes() == plain.forward([3]).tobytes()


# ---------------------------------------------------------------- threads


def test_sessions_of_one_model_in_several_threads_take_turns(load):
    model = load("moba", n_slots=4, threads=2)
    prompts = [engines.tokens(200, seed) for seed in range(4)]
    results: list[engines.Bits | Exception | None] = [None] * 4
    start = threading.Barrier(4)

    def work(i):
        try:
            start.wait(timeout=60)
            with model.session() as session:
                results[i] = engines.run_bits(session, prompts[i], 1)
        except Exception as error:
            results[i] = error

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for prompt, result in zip(prompts, results, strict=True):
        assert isinstance(result, dict), result
        with model.session() as session:
            assert engines.differing(result, engines.run_bits(session, prompt, 1)) == []


def test_forks_and_snapshots_in_several_threads_keep_apart(load):
    model = load("moba", n_slots=12, threads=2)
    failures = []

    def work(seed):
        prompt = engines.tokens(60, seed)
        try:
            for _ in range(5):
                with model.session() as session:
                    session.forward(prompt[:30], logits="none")
                    with session.fork() as fork, model.resume(session.snapshot()) as resumed:
                        logits = [s.forward(prompt[30:]) for s in (session, fork, resumed)]
                results[seed].update(part.tobytes() for part in logits)
        except Exception as error:
            failures.append(error)

    results = [set() for _ in range(4)]
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    for seed in range(4):
        with model.session() as session:
            assert results[seed] == {session.forward(engines.tokens(60, seed)).tobytes()}


def test_a_forgotten_session_gives_its_slot_back(load):
    model = load("rwkv7", n_slots=2)
    for _ in range(10):
        model.session().forward([1, 2, 3])


def test_the_interpreter_runs_on_during_a_forward_that_writes_where_out_says(load):
    session = load("rwkv7", threads=1).session()
    prompt = engines.tokens(40 * 256)  # 40 passes, each of which writes its rows of logits
    out = np.full((len(prompt), 512), np.nan, np.float32)
    worker = threading.Thread(target=session.forward, args=(prompt, "all", out))
    worker.start()
    seen_half_way = False
    while worker.is_alive() and not seen_half_way:
        seen_half_way = bool(np.isfinite(out[0, 0]) and np.isnan(out[-1, 0]))
    worker.join()
    assert seen_half_way
    assert np.isfinite(out).all()


def test_a_session_may_be_closed_twice_and_outlive_its_model(load):
    model = load("rwkv7")
    session = model.session()
    session.forward(PROMPT[:3])
    del model
    expected = session.forward(PROMPT[3:6]).tobytes()
    session.close()
    session.close()
    with load("rwkv7").session() as again:
        assert again.forward(PROMPT[:6]).tobytes() == expected
