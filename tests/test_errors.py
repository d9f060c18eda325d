"""Misuse gets a typed error that says what, where and what to do, and leaves the slot unharmed."""

from contextlib import contextmanager

import checkpoint_files
import engines
import numpy as np
import pytest

import wkvm
from wkvm import errors
from wkvm.errors import (
    CacheFullError,
    ClosedError,
    FileError,
    InvalidArgumentError,
    NoSlotError,
    NumericError,
    StateMismatchError,
    WkvmError,
)

PROMPT = engines.tokens(60, seed=5)
V = 512


@pytest.fixture(scope="module")
def load(checkpoint):
    def load(name="x128-6p2", **options):
        return wkvm.load(checkpoint(name), **{"n_slots": 2, "policy": "full", **options})

    return load


@pytest.fixture
def session(load):
    session = load(max_cache_len=64).session()
    session.forward(PROMPT[:20], logits="none")
    return session


@contextmanager
def refused(*sessions, by, match=None):
    """The body raises `by`, with a one-line message, and the sessions do not notice."""
    before = [(engines.state_bits(session), list(session.tokens)) for session in sessions]
    with pytest.raises(by, match=match) as info:
        yield
    message = str(info.value)
    assert message
    assert "\n" not in message
    for session, (state, tokens) in zip(sessions, before, strict=True):
        assert engines.differing(engines.state_bits(session), state) == []
        assert list(session.tokens) == tokens
        session.forward(PROMPT[20:22])  # it still runs


@pytest.mark.parametrize("bad", [V, -1, 2**32, 2**32 + 5, 2**63, -(2**63)])
@pytest.mark.parametrize("place", [0, 10, 19])
def test_a_bad_token_id_is_refused(session, bad, place):
    tokens = PROMPT[:20]
    tokens[place] = bad
    with refused(session, by=InvalidArgumentError):
        session.forward(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        np.zeros(0, np.uint32),
        np.zeros((2, 2), np.uint32),
        [1.5],
        np.array([1.0, 2.0]),
        np.array([np.nan]),
        ["1"],
        [None],
        "12",
        None,
        5,
        [[1, 2]],
        [True, None],
    ],
    ids=repr,
)
def test_what_is_not_a_list_of_tokens_is_refused(session, tokens):
    with refused(session, by=InvalidArgumentError):
        session.forward(tokens)


def test_a_full_cache_is_refused_before_anything_runs(session):
    with refused(session, by=CacheFullError, match="max_cache_len"):
        session.forward(engines.tokens(45))  # 20 + 45 > 64
    session.forward(engines.tokens(42))  # the last position
    with pytest.raises(CacheFullError):
        session.forward([1])


def test_a_full_cache_spares_the_other_rows_of_the_batch(load):
    model = load(max_cache_len=64)
    a, b = model.session(), model.session()
    a.forward(PROMPT[:20], logits="none")
    with refused(a, b, by=CacheFullError):
        model.forward([(a, PROMPT[:5]), (b, engines.tokens(65))])


def test_window_never_fills(load):
    session = load(policy="window", window_sinks=2, window_size=10, max_cache_len=16).session()
    for _ in range(5):
        session.forward(PROMPT, logits="none")


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(V - 1, np.float32),
        np.zeros(V + 1, np.float32),
        np.zeros(V, np.float64),
        np.zeros(V, np.float16),
        np.zeros(2 * V, np.float32)[::2],
        np.zeros(V, ">f4"),
        [0.0] * V,
        bytearray(4 * V),
    ],
    ids=lambda out: f"{type(out).__name__}-{getattr(out, 'dtype', '')}-{getattr(out, 'shape', '')}",
)
def test_an_unfit_out_is_refused(session, out):
    with refused(session, by=InvalidArgumentError):
        session.forward(PROMPT[:2], out=out)


def test_an_out_for_all_rows_that_is_no_array_is_refused(session):
    with refused(session, by=InvalidArgumentError):
        session.forward(PROMPT[:2], logits="all", out=[0.0] * (2 * V))


@pytest.mark.parametrize(
    "options",
    [{"threads": "2"}, {"threads": 1.5}, {"n_slots": "2"}, {"max_cache_len": "64"}, {"dtype": 5}],
    ids=str,
)
def test_an_option_of_another_type_is_refused(load, options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        load(**options)


@pytest.mark.parametrize("max_tokens", ["3", 1.5, -1], ids=repr)
def test_a_number_of_tokens_that_is_none_is_refused(session, max_tokens):
    with refused(session, by=InvalidArgumentError, match="max_tokens"):
        session.stream(max_tokens)


def test_a_read_only_out_is_refused(session):
    out = np.zeros(V, np.float32)
    out.flags.writeable = False
    with refused(session, by=InvalidArgumentError):
        session.forward(PROMPT[:2], out=out)
    assert not out.any()


def test_out_for_all_rows_must_have_all_rows(session):
    for shape in ((1, V), (3, V), (V,)):
        with refused(session, by=InvalidArgumentError):
            session.forward(PROMPT[:2], logits="all", out=np.zeros(shape, np.float32))


def test_out_without_logits_is_refused(session):
    with refused(session, by=InvalidArgumentError):
        session.forward(PROMPT[:2], logits="none", out=np.zeros(V, np.float32))


@pytest.mark.parametrize("logits", ["first", "", None, 1])
def test_an_unknown_kind_of_logits_is_refused(session, logits):
    with refused(session, by=(InvalidArgumentError, TypeError)):
        session.forward(PROMPT[:2], logits=logits)


def test_a_session_may_stand_in_a_batch_once(load):
    model = load()
    session = model.session()
    with refused(session, by=InvalidArgumentError):
        model.forward([(session, [1]), (session, [2])])


def test_a_session_of_another_model_is_refused(load):
    model, other = load(), load()
    mine, its = model.session(), other.session()
    with refused(mine, its, by=InvalidArgumentError):
        model.forward([(mine, [1]), (its, [2])])


def test_an_empty_batch_is_refused(load):
    with pytest.raises(InvalidArgumentError):
        load().forward([])


def test_a_bad_row_spares_the_other_rows_of_the_batch(load):
    model = load()
    a, b = model.session(), model.session()
    for bad in ([], [V], [-1]):
        with refused(a, b, by=InvalidArgumentError):
            model.forward([(a, PROMPT[:5]), (b, bad)])


def test_slots_run_out_and_come_back(load):
    model = load()
    a, b = model.session(), model.session()
    a.forward(PROMPT[:5])
    with refused(a, by=NoSlotError):
        model.session()
    with refused(a, by=NoSlotError):
        a.fork()
    snapshot = a.snapshot()
    with refused(a, by=NoSlotError):
        model.resume(snapshot)
    b.close()
    model.session()


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.forward([1]),
        lambda s: s.state(),
        lambda s: s.reset(),
        lambda s: s.fork(),
        lambda s: s.snapshot(),
        lambda s: s.save("/nowhere/state"),
        lambda s: next(iter(s.generate(max_tokens=1))),
        lambda s: s.feed("a"),
    ],
    ids=["forward", "state", "reset", "fork", "snapshot", "save", "generate", "feed"],
)
def test_a_closed_session_is_refused(load, use):
    model = load()
    session = model.session()
    session.close()
    with pytest.raises(ClosedError):
        use(session)
    other = model.session()  # which may live in the slot that the closed one had
    with refused(other, by=ClosedError):
        use(session)


def test_a_closed_session_in_a_batch_is_refused(load):
    model = load()
    a, b = model.session(), model.session()
    b.close()
    with refused(a, by=ClosedError):
        model.forward([(a, [1]), (b, [1])])


# ---------------------------------------------------------------- foreign states


@pytest.fixture(scope="module")
def snapshots(load, tmp_path_factory):
    """The same tokens under several models and rules, as snapshots and as files."""
    folder = tmp_path_factory.mktemp("snapshots")
    made = {}
    for name, options in {
        "own": {},
        "other policy": {"policy": "moba"},
        "other kv": {"kv_dtype": "fp32"},
        "other dtype": {"dtype": "int8"},
        "other family": {"name": "r7-s128"},
    }.items():
        session = load(**options).session()
        session.forward(PROMPT[:20], logits="none")
        path = folder / name
        session.save(path)
        made[name] = session.snapshot(), path
    return made


@pytest.mark.parametrize("kind", ["other policy", "other kv", "other dtype", "other family"])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_foreign_state_is_refused(load, snapshots, kind, as_file):
    model = load()
    model.resume(snapshots["own"][as_file]).close()
    session = model.session()
    session.forward(PROMPT[:20], logits="none")
    with refused(session, by=StateMismatchError):
        model.resume(snapshots[kind][as_file])
    model.session()  # and its slot was given back


def test_a_state_of_another_window_is_refused(load):
    options = {"policy": "window", "window_sinks": 4}
    session = load(**options, window_size=10).session()
    session.forward(PROMPT[:20], logits="none")
    with pytest.raises(StateMismatchError):
        load(**options, window_size=12).resume(session.snapshot())


def test_a_state_of_other_moba_blocks_is_refused(load):
    # Its keys would fit, but the tokens so far saw other blocks.
    session = load(policy="moba", moba_chunk_size=16, moba_topk=2).session()
    session.forward(PROMPT, logits="none")
    with pytest.raises(StateMismatchError):
        load(policy="moba", moba_chunk_size=8, moba_topk=2).resume(session.snapshot())


def test_weights_that_differ_in_one_value_are_another_model(checkpoint, tmp_path):
    raw = checkpoint_files.read(checkpoint("r7-s128"))
    same, changed = tmp_path / "same.safetensors", tmp_path / "changed.safetensors"
    checkpoint_files.write_safetensors(same, raw)
    dtype, shape, data = raw["blocks.1.ffn.value.weight"]
    flipped = bytearray(data)
    flipped[100] ^= 1
    raw["blocks.1.ffn.value.weight"] = (dtype, shape, bytes(flipped))
    checkpoint_files.write_safetensors(changed, raw)
    session = wkvm.load(checkpoint("r7-s128"), n_slots=1).session()
    session.forward(PROMPT[:20], logits="none")
    wkvm.load(same, n_slots=1).resume(session.snapshot())  # another file, the same model
    with pytest.raises(StateMismatchError):
        wkvm.load(changed, n_slots=1).resume(session.snapshot())


def test_a_damaged_state_file_is_refused(load, snapshots, tmp_path):
    model = load()
    good = snapshots["own"][1].read_bytes()
    damaged = tmp_path / "state"
    n_header = 8 + int.from_bytes(good[:8], "little")
    rng = np.random.default_rng(0)
    for n in [0, 1, 7, 8, 9, n_header - 1, n_header, len(good) - 1]:
        damaged.write_bytes(good[:n])
        with pytest.raises(WkvmError):
            model.resume(damaged)
    for place in rng.integers(0, len(good), 200):
        flipped = bytearray(good)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.write_bytes(flipped)
        with pytest.raises(WkvmError):
            model.resume(damaged)
    with pytest.raises(FileError):
        model.resume(tmp_path / "missing")
    assert model.resume(snapshots["own"][1])


@pytest.mark.parametrize("thing", [None, 5, b"state", {"tokens": [1]}, object()], ids=repr)
def test_only_a_snapshot_or_a_path_resumes(load, thing):
    with pytest.raises((WkvmError, TypeError)):
        load().resume(thing)


# ---------------------------------------------------------------- numeric failures


def poisoned(checkpoint, tmp_path, scale):
    """x128-6p2 with the keys of one attention block `scale` times as large, in float32."""

    def edit(arrays):
        arrays["moba.1.att.key.weight"] *= np.float32(scale)

    return checkpoint_files.write_edited(
        checkpoint("x128-6p2"), tmp_path / "poisoned.safetensors", edit
    )


def test_a_key_beyond_float16_is_a_numeric_error_that_says_where(checkpoint, tmp_path):
    path = poisoned(checkpoint, tmp_path, 1e6)
    model = wkvm.load(path, kv_dtype="fp16", n_slots=2, policy="full")
    session = model.session()
    with pytest.raises(NumericError, match="fp32"):
        session.forward(PROMPT[:3])
    with pytest.raises(WkvmError):
        session.forward(PROMPT[:3])  # it refuses until it is reset
    session.reset()
    wide = wkvm.load(path, kv_dtype="fp32", n_slots=1, policy="full").session()
    assert np.isfinite(wide.forward(PROMPT[:3])).all()


def test_an_overflow_is_a_numeric_error(checkpoint, tmp_path):
    path = poisoned(checkpoint, tmp_path, 3e38)
    session = wkvm.load(path, kv_dtype="fp32", n_slots=1, policy="full").session()
    with pytest.raises(NumericError):
        session.forward(PROMPT[:3])


def test_a_numeric_error_spares_the_other_rows_of_the_batch(checkpoint, tmp_path):
    def edit(arrays):
        arrays["rwkv.emb.weight"][7] = 3e38  # the sum of these is infinite

    path = checkpoint_files.write_edited(
        checkpoint("x128-6p2"), tmp_path / "model.safetensors", edit
    )
    model = wkvm.load(path, n_slots=3, policy="full")
    good, bad, alone = (model.session() for _ in range(3))
    with pytest.raises(NumericError, match="embedding"):
        model.forward([(good, [1, 2, 3]), (bad, [1, 7, 2])])
    alone.forward([1, 2, 3])
    assert list(good.tokens) == [1, 2, 3]
    assert good.forward([4]).tobytes() == alone.forward([4]).tobytes()
    with pytest.raises(NumericError):
        bad.forward([1])
    bad.reset()
    good.reset()
    assert bad.forward([1, 2]).tobytes() == good.forward([1, 2]).tobytes()


# ---------------------------------------------------------------- files


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileError, match=r"missing\.safetensors"):
        wkvm.load(tmp_path / "missing.safetensors")


def test_a_truncated_checkpoint_is_refused(checkpoint, tmp_path):
    for name in ("x128-6p2", "r7-s128"):
        good = checkpoint(name).read_bytes()
        for n in (0, 1, 8, 100, len(good) // 2, len(good) - 1):
            path = tmp_path / f"{name}-{n}"
            path.write_bytes(good[:n])
            with pytest.raises(WkvmError):
                wkvm.load(path)


def test_every_error_is_a_wkvm_error_with_its_own_status():
    raised = [error for error in errors.BY_STATUS if error is not None]
    assert len(raised) == len(set(raised)) == 10
    assert all(issubclass(error, WkvmError) for error in [*raised, ClosedError])


@pytest.mark.parametrize("path", [5, [], b"model.pth"])
def test_what_is_no_path_is_refused_by_type(path):
    with pytest.raises(InvalidArgumentError):
        wkvm.load(path)
