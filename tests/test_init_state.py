"""Tuned initial states: both layouts, as the rwkv package computes with them, and for whom."""

import json
import subprocess
import sys

import checkpoint_files
import engines
import numpy as np
import pth_files
import pytest
import reference
import vocabularies
from conftest import DATA
from safetensors.numpy import load_file

import wkvm
from wkvm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    StateMismatchError,
    UnsupportedError,
)

GOLDEN = DATA / "init_state" / "r7-s128.safetensors"
TOKENS = engines.tokens(40, seed=3)
LAYOUTS = ("value-key", "key-value")


@pytest.fixture(scope="module")
def golden():
    """A state of r7-s128, six tokens, the rwkv package's logits after the first and the last."""
    return load_file(GOLDEN)


@pytest.fixture(scope="module")
def model(checkpoint):
    return wkvm.load(checkpoint("r7-s128"), n_slots=4)


def states_of(golden):
    return {f"blocks.{i}.att.time_state": golden[f"blocks.{i}.att.time_state"] for i in range(3)}


def as_type(array, dtype):
    """The bytes of values that float16 holds exactly, in a type that holds them too, or nearly."""
    wide = np.ascontiguousarray(array, "<f4")
    if dtype == "BF16":
        return (wide.view("<u4") >> 16).astype("<u2").tobytes()
    return wide.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write(path, arrays, dtype="F32"):
    """A state file: .pth or .safetensors by its ending."""
    raw = {name: (dtype, array.shape, as_type(array, dtype)) for name, array in arrays.items()}
    if path.suffix == ".pth":
        return pth_files.write_checkpoint(path, raw)
    checkpoint_files.write_safetensors(path, raw)
    return path


@pytest.fixture
def state_file(golden, tmp_path):
    return write(tmp_path / "state.pth", states_of(golden))


# ---- the numbers


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_logits_are_those_of_the_rwkv_package(model, golden, tmp_path, layout, ending):
    path = write(tmp_path / f"state.{ending}", states_of(golden))
    state = wkvm.InitState.load(path, layout)
    session = model.session(state)
    logits = session.forward(golden["tokens"], logits="all")
    expected = golden[f"logits.{layout}"]
    other = golden[f"logits.{LAYOUTS[layout == LAYOUTS[0]]}"]
    # Both are float32 in other orders of summing; the official code is 5e-6 from float64 here.
    assert np.abs(logits[[0, -1]] - expected).max() <= 2e-4
    assert np.abs(logits[[0, -1]] - other).max() > 0.1
    plain = model.session().forward(golden["tokens"][:1])
    assert np.abs(plain - expected[0]).max() > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_states_are_those_of_the_reference(
    checkpoint, model, golden, state_file, layout
):
    session = model.session(wkvm.InitState.load(state_file, layout))
    logits = session.forward(TOKENS, logits="all")
    truth = reference.Reference(checkpoint_files.weights(checkpoint("r7-s128")))
    state = truth.new_state()
    for i in range(3):
        S = golden[f"blocks.{i}.att.time_state"].astype(np.float64)
        state[f"rwkv.{i}.wkv"] = S if layout == "value-key" else S.swapaxes(1, 2)
    expected = truth.forward(TOKENS, state)
    assert np.abs(logits - expected).max() <= 2e-4  # float32 against float64, 3 blocks, 40 tokens
    for name, array in session.state().items():
        error = np.abs(array - state[name]) / np.maximum(1, np.abs(state[name]))
        assert error.max() <= 2e-4, name


def test_rwkvx_begins_with_one_too(checkpoint, tmp_path):
    model = wkvm.load(checkpoint("x128-6p2"), policy="full", kv_dtype="fp32", n_slots=1)
    rng = np.random.default_rng(1)
    blocks = [rng.standard_normal((2, 64, 64)).astype("<f4") for _ in range(6)]
    arrays = {f"rwkv.blocks.{i}.att.time_state": block for i, block in enumerate(blocks)}
    session = model.session(write(tmp_path / "s.pth", arrays))
    logits = session.forward(TOKENS, logits="all")
    truth = reference.Reference(checkpoint_files.weights(checkpoint("x128-6p2")))
    state = truth.new_state()
    state |= {f"rwkv.{i}.wkv": block.astype(np.float64) for i, block in enumerate(blocks)}
    assert np.abs(logits - truth.forward(TOKENS, state)).max() <= 2e-4  # as above, 8 blocks


# ---- the layout


@pytest.mark.parametrize(
    ("ending", "dtype", "layout"),
    [
        ("pth", "F32", "value-key"),  # RWKV-PEFT
        ("pth", "BF16", "value-key"),
        ("pth", "F16", "value-key"),
        ("safetensors", "F32", "value-key"),
        ("safetensors", "BF16", "value-key"),
        ("safetensors", "F16", "key-value"),  # web-rwkv's converter
    ],
)
def test_the_layout_follows_from_who_writes_such_files(golden, tmp_path, ending, dtype, layout):
    path = write(tmp_path / f"state.{ending}", states_of(golden), dtype)
    state = wkvm.InitState.load(path)
    assert state.layout == layout
    for other in LAYOUTS:
        chosen = wkvm.InitState.load(path, other)
        assert chosen.layout == other
        assert (chosen.id == state.id) == (other == layout)


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_every_type_is_read_exactly(golden, tmp_path, dtype):
    path = write(tmp_path / "state.pth", states_of(golden), dtype)
    for i, block in enumerate(wkvm.InitState.load(path).blocks):
        assert block.dtype == np.float32
        assert (block == golden[f"blocks.{i}.att.time_state"]).all()


def test_bfloat16_is_read_exactly(golden, tmp_path):
    arrays = states_of(golden)
    path = write(tmp_path / "state.pth", arrays, "BF16")
    for block, array in zip(wkvm.InitState.load(path).blocks, arrays.values(), strict=True):
        upper = np.ascontiguousarray(array, "<f4").view("<u4") & 0xFFFF0000
        assert (block.view(np.uint32) == upper).all()


def test_a_transposed_file_in_the_other_layout_is_the_same_state(golden, tmp_path):
    arrays = states_of(golden)
    turned = {name: array.swapaxes(1, 2) for name, array in arrays.items()}
    one = wkvm.InitState.load(write(tmp_path / "one.pth", arrays), "value-key")
    two = wkvm.InitState.load(write(tmp_path / "two.pth", turned), "key-value")
    assert one.id == two.id


def test_an_unknown_layout_is_refused(state_file):
    with pytest.raises(InvalidArgumentError, match="value-key or key-value"):
        wkvm.InitState.load(state_file, "vk")


# ---- a session's life


def bits(session):
    return {name: array.tobytes() for name, array in session.state().items()}


def test_a_session_begins_with_the_state_and_reset_goes_back_to_it(model, state_file):
    state = wkvm.InitState.load(state_file)
    session = model.session(state)
    born = bits(session)
    assert born["rwkv.1.wkv"] == state.blocks[1].tobytes()
    first = session.forward(TOKENS)
    session.reset()
    assert session.tokens == []
    assert bits(session) == born
    assert session.forward(TOKENS).tobytes() == first.tobytes()


def test_a_snapshot_resumes_with_the_same_bits(model, state_file, tmp_path):
    session = model.session(state_file)
    session.forward(TOKENS[:20], logits="none")
    session.save(tmp_path / "snapshot.safetensors")
    twin = session.fork()
    resumed = model.resume(tmp_path / "snapshot.safetensors")
    expected = session.forward(TOKENS[20:], logits="all").tobytes()
    assert twin.forward(TOKENS[20:], logits="all").tobytes() == expected
    assert resumed.forward(TOKENS[20:], logits="all").tobytes() == expected


def test_even_a_snapshot_of_no_tokens_keeps_the_state(model, state_file):
    session = model.session(state_file)
    resumed = model.resume(session.snapshot())
    assert bits(resumed) == bits(session)
    assert resumed.forward(TOKENS).tobytes() == session.forward(TOKENS).tobytes()


def test_a_fork_resets_to_the_state_that_its_parent_was_born_with(model, state_file):
    session = model.session(state_file)
    born = bits(session)
    session.forward(TOKENS, logits="none")
    twin = session.fork()
    twin.reset()
    assert bits(twin) == born


def test_the_lineage_tells_tuned_states_from_computed_ones(model, golden, state_file, tmp_path):
    plain, tuned, twin, other = (
        model.session(),
        model.session(state_file),
        model.session(state_file),
        model.session(wkvm.InitState.load(state_file, "key-value")),
    )
    for session in (plain, tuned, twin, other):
        session.forward(TOKENS[:5], logits="none")
    lineages = [session.snapshot().lineage for session in (plain, tuned, twin, other)]
    assert lineages[0] == ""
    assert lineages[1] == lineages[2] == wkvm.InitState.load(state_file).id
    assert lineages[3] not in lineages[:3]
    assert tuned.snapshot() == twin.snapshot()
    assert tuned.snapshot().identity == plain.snapshot().identity  # the model is the same
    tuned.save(tmp_path / "tuned.safetensors")
    assert wkvm.Snapshot.load(tmp_path / "tuned.safetensors").lineage == lineages[1]


def test_batches_and_chunks_do_not_change_the_bits(model, state_file):
    alone = model.session(state_file).forward(TOKENS).tobytes()
    tuned, plain = model.session(state_file), model.session()
    for at in range(0, 40, 8):
        rows = [(plain, TOKENS[at : at + 8]), (tuned, TOKENS[at : at + 8])]
        result = model.forward(rows)
    assert result[1].tobytes() == alone
    assert result[0].tobytes() != alone


# ---- who may not


def misfit(golden, edit):
    arrays = states_of(golden)
    edit(arrays)
    return arrays


MISFITS = {
    "another head size": lambda a: a.update({name: np.zeros((4, 32, 32), "<f4") for name in a}),
    "more heads": lambda a: a.update({name: np.zeros((3, 64, 64), "<f4") for name in a}),
    "fewer blocks": lambda a: a.popitem(),
    "more blocks": lambda a: a.update({"blocks.3.att.time_state": np.zeros((2, 64, 64), "<f4")}),
}


@pytest.mark.parametrize("name", MISFITS)
def test_another_model_s_state_is_refused_and_takes_no_slot(model, golden, tmp_path, name):
    path = write(tmp_path / "state.pth", misfit(golden, MISFITS[name]))
    before = model.stats()["n_slots_used"]
    with pytest.raises(StateMismatchError, match="tuned for another model") as info:
        model.session(path)
    assert str(path) in str(info.value)
    assert model.stats()["n_slots_used"] == before


BROKEN = {
    "no square": (
        lambda a: a.update({"blocks.1.att.time_state": np.zeros((2, 64, 32), "<f4")}),
        "square matrix per head",
    ),
    "no matrix": (
        lambda a: a.update({"blocks.1.att.time_state": np.zeros(64, "<f4")}),
        "square matrix per head",
    ),
    "blocks of other sizes": (
        lambda a: a.update({"blocks.1.att.time_state": np.zeros((4, 32, 32), "<f4")}),
        "as many and as large",
    ),
    "a hole": (lambda a: a.pop("blocks.1.att.time_state"), r"blocks\.1\..* is missing"),
    "nothing": (lambda a: a.clear(), "holds no tensor"),
    "something else": (
        lambda a: a.update({"blocks.0.att.time_offset": np.zeros((2, 64), "<f4")}),
        "time_offset is no initial state",
    ),
    "a block twice": (
        lambda a: a.update({"rwkv.blocks.1.att.time_state": np.zeros((2, 64, 64), "<f4")}),
        "two states",
    ),
    "infinite": (
        lambda a: a.update({"blocks.2.att.time_state": np.full((2, 64, 64), np.inf, "<f4")}),
        r"blocks\.2\..* not finite",
    ),
    "no numbers": (
        lambda a: a.update({name: np.zeros((0, 64, 64), "<f4") for name in a}),
        "square matrix per head",
    ),
}


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_state_is_refused(golden, tmp_path, name, ending):
    edit, match = BROKEN[name]
    path = write(tmp_path / f"state.{ending}", misfit(golden, edit))
    with pytest.raises(FormatError, match=match) as info:
        wkvm.InitState.load(path)
    assert str(path) in str(info.value)


@pytest.mark.slow
def test_a_small_file_cannot_claim_a_large_state(tmp_path):
    """Tensors of a .pth may share a storage; 2,000 blocks of one would take 2 GB."""
    torch = pytest.importorskip("torch", reason="only PyTorch's own files share storages")
    block = torch.zeros(8, 64, 64)
    states = {f"blocks.{i}.att.time_state": block for i in range(100)}
    torch.save(states, tmp_path / "shared.pth")
    with pytest.raises(FormatError, match="share their storages"):
        wkvm.InitState.load(tmp_path / "shared.pth")


def test_integers_are_refused(golden, tmp_path):
    raw = {"blocks.0.att.time_state": ("I8", (2, 64, 64), bytes(2 * 64 * 64))}
    checkpoint_files.write_safetensors(tmp_path / "s.safetensors", raw)
    with pytest.raises(FormatError, match="i8, not a float type"):
        wkvm.InitState.load(tmp_path / "s.safetensors")


def test_a_model_is_no_state_and_a_state_no_model(checkpoint, model, state_file, tmp_path):
    with pytest.raises(FormatError, match="no initial state"):
        wkvm.InitState.load(checkpoint("r7-s128"))
    with pytest.raises(UnsupportedError, match="--state"):
        wkvm.load(state_file)
    with pytest.raises(FileError):
        model.session(tmp_path / "none.pth")
    for no_path in (5, b"state.pth", [state_file]):
        with pytest.raises(InvalidArgumentError, match="init_state is"):
            model.session(no_path)


# ---- the command line


def test_generate_begins_with_a_state_and_says_how_it_read_it(
    checkpoint, model, state_file, tmp_path
):
    vocab = vocabularies.write_small(tmp_path / "vocabulary.txt")
    tokenizer = wkvm.Tokenizer.from_file(vocab)

    def generate(*options):
        common = ("--model", checkpoint("r7-s128"), "--vocab", vocab, "--ignore-eos")
        greedy = ("--temperature", "0", "--max-tokens", "9", "--json")
        return subprocess.run(
            [sys.executable, "-m", "wkvm", "generate", "once", *common, *greedy, *options],
            capture_output=True,
            text=True,
            check=False,
        )

    def expected(layout):
        session = model.session(wkvm.InitState.load(state_file, layout))
        session.forward(tokenizer.encode("once"), "none")
        tokens = []
        for _ in range(9):
            tokens.append(int(session.logits().argmax()))
            session.forward(tokens[-1:], "none")
        return tokens

    chosen = generate("--state", state_file)
    assert f"note: read {state_file} as --state-layout value-key" in chosen.stderr
    assert json.loads(chosen.stdout)["tokens"] == expected("value-key")
    other = generate("--state", state_file, "--state-layout", "key-value")
    assert other.stderr == ""
    assert json.loads(other.stdout)["tokens"] == expected("key-value")
    assert expected("key-value") != expected("value-key")
    lonely = generate("--state-layout", "key-value")
    assert lonely.returncode == 2
    assert "--state" in lonely.stderr
