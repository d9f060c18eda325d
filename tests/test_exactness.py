"""Bits are the contract: the same tokens through the same weights, however they are run."""

import ctypes
import itertools
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import cache

import checkpoint_files
import engines
import goldens
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import wkvm
from wkvm._engine import isa_list

# Longer than the 256 tokens that one pass through the blocks carries, than many blocks of moba,
# and than several windows.
PROMPT = engines.tokens(300)

# Model, policy and its options. Both are synthetic and lie in tests/data.
SETUPS = {
    "rwkv7": ("r7-s128", {}),
    "full": ("x128-6p2", {"policy": "full"}),
    "moba": ("x128-6p2", {"policy": "moba", "moba_chunk_size": 16, "moba_topk": 3}),
    "window": ("x128-6p2", {"policy": "window", "window_sinks": 4, "window_size": 24}),
}
DTYPES = ["fp32", "fp16", "bf16", "int8"]
every_setup = pytest.mark.parametrize("setup", SETUPS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
# (setup, dtype)
every_model = pytest.mark.parametrize("what", list(itertools.product(SETUPS, DTYPES)), ids="-".join)


@pytest.fixture(scope="module")
def load(checkpoint):
    """Loads a model of SETUPS with one thread, unless told otherwise."""

    def load(setup, dtype, **options):
        name, policy = SETUPS[setup]
        options = {"n_slots": 1, "threads": 1, **policy, **options}
        return wkvm.load(checkpoint(name), dtype=dtype, **options)

    return load


@pytest.fixture(scope="module")
def expected(load):
    """The bits of PROMPT, run in one call with one thread."""

    @cache
    def expected(setup, dtype, kv_dtype="fp16"):
        return engines.run_bits(load(setup, dtype, kv_dtype=kv_dtype).session(), PROMPT)

    return expected


@every_model
@pytest.mark.parametrize("kv_dtype", ["fp16", "fp32"])
def test_any_chunking_gives_the_same_bits(load, expected, what, kv_dtype):
    model = load(*what, kv_dtype=kv_dtype)
    for chunk in (1, 3, 64):
        with model.session() as session:
            bits = engines.run_bits(session, PROMPT, chunk)
        assert engines.differing(bits, expected(*what, kv_dtype)) == [], chunk


@every_model
@pytest.mark.parametrize("threads", [2, 5])
def test_any_number_of_threads_gives_the_same_bits(load, expected, what, threads):
    model = load(*what, threads=threads)
    assert model.threads == threads
    for chunk in (1, None):
        with model.session() as session:
            bits = engines.run_bits(session, PROMPT, chunk)
        assert engines.differing(bits, expected(*what)) == [], chunk


@every_model
def test_every_instruction_set_gives_the_bits_of_scalar(load, monkeypatch, what):
    # Scalar multiply-adds go through libm: short prompts, policies scaled down to match.
    prompt = PROMPT[:40]
    small = {
        "moba": {"moba_chunk_size": 8, "moba_topk": 2},
        "window": {"window_sinks": 2, "window_size": 8},
    }
    bits = {}
    for isa in isa_list():
        monkeypatch.setenv("WKVM_ISA", isa)
        model = load(*what, **small.get(what[0], {}))
        assert model.isa == isa
        for chunk in (None, 1):  # matrices times many tokens, and times one
            with model.session() as session:
                bits[isa, chunk] = engines.run_bits(session, prompt, chunk)
    for run, its_bits in bits.items():
        assert engines.differing(its_bits, bits["scalar", None]) == [], run


# ---------------------------------------------------------------- batches

N_STREAMS = 16
# One batch: (stream, tokens that it takes next); a stream at most once.
batches = st.lists(
    st.lists(
        st.tuples(st.integers(0, N_STREAMS - 1), st.integers(1, 40)),
        min_size=1,
        max_size=N_STREAMS,
        unique_by=lambda row: row[0],
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def batch_model(load):
    return cache(lambda setup, dtype: load(setup, dtype, n_slots=N_STREAMS, threads=2))


@pytest.fixture(scope="module")
def streams(load):
    """Per setup and type: N_STREAMS prompts of 240 tokens, and the logits of each run alone."""

    @cache
    def streams(setup, dtype):
        prompts = [engines.tokens(240, seed) for seed in range(N_STREAMS)]
        model = load(setup, dtype)
        alone = []
        for prompt in prompts:
            with model.session() as session:
                alone.append(engines.run(session, prompt))
        return prompts, alone

    return streams


@every_model
@given(plan=batches)
@example(plan=[[(i, 1 + 5 * i % 7) for i in range(N_STREAMS)], [(i, 1) for i in range(N_STREAMS)]])
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_session_is_blind_to_its_neighbours(batch_model, streams, what, plan):
    check_batches(batch_model(*what), streams(*what), plan)


def check_batches(model, streams, plan):
    prompts, alone = streams
    sessions = [model.session() for _ in prompts]
    try:
        done = [0] * len(prompts)
        for batch in plan:
            rows = [(sessions[i], prompts[i][done[i] : done[i] + n]) for i, n in batch]
            for (i, n), logits in zip(batch, model.forward(rows, logits="all"), strict=True):
                assert logits.tobytes() == alone[i][done[i] : done[i] + n].tobytes()
                done[i] += n
        used = [i for i, n in enumerate(done) if n]
        states = {i: engines.state_bits(sessions[i]) for i in used}
    finally:
        for session in sessions:
            session.close()
    for i in used:
        with model.session() as session:
            session.forward(prompts[i][: done[i]], logits="none")
            assert engines.differing(states[i], engines.state_bits(session)) == []


def test_last_logits_are_the_last_row_of_all(load):
    model = load("moba", "fp32", n_slots=3)
    a, b, c = (model.session() for _ in range(3))
    every = a.forward(PROMPT[:30], logits="all")
    assert b.forward(PROMPT[:30]).tobytes() == every[-1].tobytes()
    assert c.forward(PROMPT[:30], logits="none") is None
    assert engines.differing(engines.state_bits(b), engines.state_bits(a)) == []
    assert engines.differing(engines.state_bits(c), engines.state_bits(a)) == []


# ---------------------------------------------------------------- the floating-point environment

ENVIRONMENT_SOURCE = r"""
#include <fenv.h>
#if defined(__x86_64__)
#include <immintrin.h>
// Modes and masks of the SSE unit, without the sticky flags that any operation may raise.
unsigned long get(void) { return _mm_getcsr() & 0xFFC0u; }
void set(unsigned long v) { _mm_setcsr((unsigned)v); }
void flush_subnormals(void) { _mm_setcsr(_mm_getcsr() | 0x8040u); }
#elif defined(__aarch64__)
unsigned long get(void) {
  unsigned long v;
  __asm__ volatile("mrs %0, fpcr" : "=r"(v));
  return v;
}
void set(unsigned long v) { __asm__ volatile("msr fpcr, %0" : : "r"(v)); }
void flush_subnormals(void) { set(get() | (1ul << 24)); }
#endif
void round_upward(void) { fesetround(FE_UPWARD); }
void round_to_zero(void) { fesetround(FE_TOWARDZERO); }
void restore(unsigned long v) {
  fesetround(FE_TONEAREST);
  set(v);
}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A library that changes the calling thread's floating-point environment."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the library that changes the environment")
    folder = tmp_path_factory.mktemp("environment")
    (folder / "environment.c").write_text(ENVIRONMENT_SOURCE)
    library = folder / "environment.so"
    command = [compiler, "-shared", "-fPIC", "-O1", folder / "environment.c", "-o", library, "-lm"]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.get.restype = ctypes.c_ulong
    loaded.restore.argtypes = [ctypes.c_ulong]
    return loaded


@contextmanager
def changed(environment, change):
    """Inside, the environment is changed; at the end it must still be the changed one."""
    before = environment.get()
    getattr(environment, change)()
    during = environment.get()
    try:
        assert during != before
        yield
        after = environment.get()
    finally:
        environment.restore(before)
    assert after == during, "wkvm left another environment behind"


def test_the_environment_library_changes_arithmetic(environment):
    one, tiny = np.float32(1), np.float32(2.0**-30)
    assert one + tiny == one
    with changed(environment, "round_upward"):
        rounded_up = one + tiny
    assert rounded_up > one
    small = np.full(64, 1e-40, np.float32)
    with changed(environment, "flush_subnormals"):
        flushed = small * np.float32(1)
    assert flushed.sum() == 0


@every_model
@pytest.mark.parametrize("change", ["round_upward", "round_to_zero", "flush_subnormals"])
def test_a_foreign_floating_point_environment_changes_nothing(
    load, expected, environment, what, change
):
    usual = load(*what, threads=2)
    with changed(environment, change):
        inside = load(*what, threads=2)  # packing and pool threads, too
        bits = engines.run_bits(inside.session(), PROMPT, 64)
        usual_bits = engines.run_bits(usual.session(), PROMPT, 64)
    assert engines.differing(bits, expected(*what)) == []
    assert engines.differing(usual_bits, expected(*what)) == []


@every_setup
def test_a_state_taken_through_a_foreign_environment_keeps_its_bits(
    load, expected, environment, setup
):
    model = load(setup, "fp32", n_slots=2)
    session = model.session()
    session.forward(PROMPT[:101], logits="none")
    with changed(environment, "round_upward"):
        twin = model.resume(session.snapshot())
        twin.forward(PROMPT[101:], logits="none")
        bits = engines.state_bits(twin)
    whole = {k: v for k, v in expected(setup, "fp32").items() if k != "logits"}
    assert engines.differing(bits, whole) == []


def test_block_means_are_summed_alike_in_a_foreign_environment(checkpoint, environment, tmp_path):
    # Resuming sums the keys again. Here every choice of blocks is a tie unless rounding differs.
    path = checkpoint_files.write_edited(
        checkpoint("x128-6p2"), tmp_path / "model.safetensors", checkpoint_files.equal_keys
    )
    options = {"policy": "moba", "moba_chunk_size": 7, "moba_topk": 3, "kv_dtype": "fp32"}
    model = wkvm.load(path, n_slots=2, threads=1, **options)
    whole = engines.run_bits(model.session(), PROMPT)
    session = model.session()
    session.forward(PROMPT[:101], logits="none")
    with changed(environment, "round_upward"):
        twin = model.resume(session.snapshot())
    twin.forward(PROMPT[101:], logits="none")
    del whole["logits"]
    assert engines.differing(engines.state_bits(twin), whole) == []


# ---------------------------------------------------------------- containers


@pytest.fixture(scope="module")
def containers(checkpoint, tmp_path_factory):
    """Per model: its checkpoint as each kind of file that holds it."""

    @cache
    def containers(name):
        folder = tmp_path_factory.mktemp(name)
        original = checkpoint(name)
        raw = checkpoint_files.read(original)
        single = folder / "single.safetensors"
        checkpoint_files.write_safetensors(single, raw)
        with_metadata = folder / "metadata.safetensors"
        checkpoint_files.write_safetensors(with_metadata, raw, {"format": "pt"})
        sharded = checkpoint_files.write_sharded(folder / "sharded", raw, 3)
        return {
            "original": original,
            "single": single,
            "with metadata": with_metadata,
            "index": sharded,
            "folder": sharded.parent,
        }

    return containers


def convert(source, target, dtype=None):
    command = [sys.executable, "-m", "wkvm", "convert", str(source), str(target)]
    subprocess.run(command + (["--dtype", dtype] if dtype else []), check=True)
    return target


@pytest.mark.parametrize("name", ["r7-s128", "x128-6p2"])
@pytest.mark.parametrize("dtype", ["auto", *DTYPES])
def test_every_container_of_a_model_gives_the_same_bits(containers, tmp_path, name, dtype):
    files = containers(name)
    opened = {}
    for kind, path in files.items():
        model = wkvm.load(path, dtype=dtype, n_slots=1, threads=1)
        opened[kind] = engines.run_bits(model.session(), PROMPT[:50])
    for kind in ("original", "index"):
        converted = convert(
            files[kind], tmp_path / f"{kind}.safetensors", None if dtype == "auto" else dtype
        )
        model = wkvm.load(converted, n_slots=1, threads=1)
        opened[f"converted from {kind}"] = engines.run_bits(model.session(), PROMPT[:50])
    for kind, bits in opened.items():
        assert engines.differing(bits, opened["original"]) == [], kind


def test_a_pth_of_float16_gives_the_bits_of_its_safetensors(checkpoint, tmp_path, fixtures):
    original = checkpoint("x192-4p1")
    copy = tmp_path / "copy.safetensors"
    checkpoint_files.write_safetensors(copy, checkpoint_files.read(original))
    for dtype in ("auto", "int8"):
        bits = [
            engines.run_bits(wkvm.load(path, dtype=dtype, n_slots=1).session(), PROMPT[:50])
            for path in (original, copy)
        ]
        assert engines.differing(*bits) == []


def test_the_tiny_bf16_pth_gives_the_bits_of_its_fp32_safetensors(checkpoint, fixtures):
    # Its values are exactly bfloat16, so the two files are one model.
    pth = fixtures / "rwkv7_tiny" / "tiny-rwkv7-834K-bf16.pth"
    prompt = engines.tokens(100, n_vocab=256)
    bits = [
        engines.run_bits(wkvm.load(path, dtype="fp32", n_slots=1).session(), prompt)
        for path in (pth, checkpoint("tiny7"))
    ]
    assert engines.differing(*bits) == []


# ---------------------------------------------------------------- larger shapes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x192-4p1", "x256-12p4", "x128-v65536", "x64-5p2-quirk"])
@every_dtype
def test_other_shapes_give_the_same_bits(checkpoint, fixtures, monkeypatch, name, dtype):
    assert name in goldens.MODELS
    n_vocab = 256 if name == "x64-5p2-quirk" else 512
    prompt = engines.tokens(270, n_vocab=n_vocab)
    options = {"policy": "moba", "moba_chunk_size": 24, "moba_topk": 2, "dtype": dtype}

    def bits(chunk, threads, n):
        model = wkvm.load(checkpoint(name), n_slots=1, threads=threads, **options)
        return engines.run_bits(model.session(), prompt[:n], chunk)

    whole = bits(None, 1, len(prompt))
    for chunk, threads in ((1, 2), (3, 1), (64, 2), (None, 2)):
        assert engines.differing(bits(chunk, threads, len(prompt)), whole) == []
    short = bits(None, 1, 60)
    for isa in isa_list():
        monkeypatch.setenv("WKVM_ISA", isa)
        assert engines.differing(bits(7, 2, 60), short) == [], isa
