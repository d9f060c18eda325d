"""The sampler against the official goldens, its reference, and its own promises."""

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference_sampler import ReferenceSampler, logprobs, philox4x32_10, uniform
from safetensors.numpy import load_file

from wkvm import _kernels, errors
from wkvm._engine import Sampler
from wkvm.hypervisor.sampling import SamplingOptions, exempt_tokens

F32 = NDArray[np.float32]

PLAIN = SamplingOptions.openai(order="rwkv")  # no cut, no penalty
GOLDEN_ATOL = 1e-5  # given with the goldens; float32 softmax against float32 softmax


def kernel_exp(x: F32) -> F32:
    return _kernels.exp(x, isa="scalar")


def sampler(n_vocab: int, options: SamplingOptions = PLAIN, seed: int = 0) -> Sampler:
    return Sampler(n_vocab, options, seed=seed)


def kept(logits: Sequence[float], **options: Any) -> list[int]:
    x = np.array(logits, dtype=np.float32)
    return sampler(len(x), replace(PLAIN, **options)).probabilities(x)[0].tolist()


# ---------------------------------------------------------------- goldens


def test_probabilities_equal_the_official_ones(fixtures: Path) -> None:
    logits = load_file(fixtures / "sampler" / "logits.safetensors")
    n_asserted = 0
    for line in (fixtures / "sampler" / "sample_cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        x = logits[case["logits"]]
        # The official code's own rounding decides these, or its accidents: a top-p that its sum
        # never reaches, ties cut in no defined order. The tests below say what we do instead.
        if (
            case["cum_never_reaches_top_p"]
            or case["topk_cuts_through_ties"]
            or case["nearest_cumsum_gap"] < 1e-5
        ):
            continue
        options = replace(
            PLAIN,
            temperature=case["temperature"],
            top_p=case["top_p"],
            top_k=max(case["top_k"], 0),
        )
        ids, probabilities = sampler(len(x), options).probabilities(x)
        n_asserted += 1
        if case["temperature"] == 0:  # the official code draws among equal maxima
            assert ids.tolist() == [np.argmax(x)]
            assert ids[0] == (case["kept_ids"] if "kept_ids" in case else case["top_ids"])[0]
        elif "kept_ids" in case:
            assert ids.tolist() == case["kept_ids"], case
            # Where the official code divides 0 by 0, the goldens hold what it should have given.
            expected = case["ideal_probs"] if case["official_nan"] else case["probs"]
            assert np.abs(probabilities - expected).max() <= GOLDEN_ATOL
        else:
            assert len(ids) == case["n_kept"]
            assert ids.sum() == case["kept_ids_sum"]
            assert x[ids].min() == np.float32(case["min_kept_logit"])
            at = np.searchsorted(ids, case["top_ids"])
            assert ids[at].tolist() == case["top_ids"]
            assert np.abs(probabilities[at] - case["top_probs"]).max() <= GOLDEN_ATOL
    assert n_asserted >= 290


def test_penalties_equal_the_official_ones(fixtures: Path) -> None:
    folder = fixtures / "sampler"
    base = load_file(folder / "penalty_base_logits.safetensors")
    traces = json.loads((folder / "penalty_traces.json").read_text())["traces"]
    exempt = json.loads((folder / "zero_weight_tokens.json").read_text())
    for trace in traces:
        rows, arguments = base[f"{trace['trace']}.base"], trace["args"]
        n_vocab = rows.shape[1]
        options = SamplingOptions(
            presence_penalty=arguments.get("alpha_presence", 0.2),
            frequency_penalty=arguments.get("alpha_frequency", 0.2),
            penalty_decay=arguments.get("alpha_decay", 0.996),
            banned=arguments.get("token_ban", ()),
            exempt=[t for t in exempt["zero_frequency_weight_token_ids"] if t < n_vocab],
        )
        chosen = sampler(n_vocab, options)
        assert len(trace["steps"]) == len(trace["forced_tokens"])
        for step, token in zip(trace["steps"], trace["forced_tokens"], strict=True):
            logits = rows[step["base"]]
            expected = logits.copy()
            expected[step["changed_ids"]] = [-np.inf if v is None else v for v in step["adjusted"]]
            adjusted = chosen.adjusted(logits)
            banned = np.isneginf(expected)
            assert np.array_equal(np.isneginf(adjusted), banned)
            assert np.abs(adjusted[~banned] - expected[~banned]).max() <= GOLDEN_ATOL
            assert np.array_equal(
                np.delete(adjusted, step["changed_ids"]), np.delete(logits, step["changed_ids"])
            )
            chosen.accept(token)
    assert len(traces) == 9


def test_exempt_tokens_of_the_world_vocabulary_are_the_official_ones(fixtures: Path) -> None:
    from wkvm.text.tokenizer import Tokenizer

    official = json.loads((fixtures / "sampler" / "zero_weight_tokens.json").read_text())
    expected = official["zero_frequency_weight_token_ids"]
    assert list(exempt_tokens(Tokenizer.world())) == expected


def test_exempt_tokens_have_bytes() -> None:
    class Table:
        vocab_size = 6

        def token_bytes(self, token: int, /) -> bytes:
            return [b"", b" ", b"12", b"21", b"\t", b"a"][token]

    assert exempt_tokens(Table()) == (1, 2, 4)


# ------------------------------------------------- where the official code decides by accident


def test_top_p_of_one_keeps_everything() -> None:
    x = np.random.default_rng(1).normal(0, 3, 65536).astype(np.float32)
    ids, probabilities = sampler(65536, replace(PLAIN, top_p=1.0)).probabilities(x)
    assert np.array_equal(ids, np.arange(65536))
    exact = np.exp(logprobs(x))
    # One rounding of each probability, and the error of the float32 sum of 65,536 weights.
    assert np.abs(probabilities / exact - 1).max() <= 1e-4
    tokens = {sampler(65536, PLAIN, seed).sample(x) for seed in range(50)}
    assert len(tokens) > 25  # not greedy


def test_top_p_keeps_all_that_are_as_probable_as_the_last() -> None:
    assert kept([1.5] * 8, top_p=0.01) == list(range(8))
    assert kept([0, 1, 3, 1, 3, 1], top_p=0.0) == [2, 4]
    assert kept([0, 1, 3, 1, 3, 1], top_p=0.85) == [1, 2, 3, 4, 5]


def test_top_k_cuts_ties_in_order_of_their_ids() -> None:
    assert kept([5, 7, 5, 5, 7], top_k=3) == [0, 1, 4]
    assert kept([5, 7, 5, 5, 7], top_k=1) == [1]


@pytest.mark.parametrize("order", ["rwkv", "openai"])
@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 5e-324])
def test_low_temperature_is_the_greedy_limit(order: str, temperature: float) -> None:
    x = np.random.default_rng(2).normal(0, 0.02, 512).astype(np.float32)
    options = replace(PLAIN, order=order, temperature=temperature)
    ids, probabilities = sampler(512, options).probabilities(x)
    assert len(ids) == 512
    with np.errstate(over="ignore"):
        exact = np.exp(logprobs((x.astype(np.float64) - x.max()) / temperature))
    # The difference of two logits is rounded to float32, and multiplied by up to 1000.
    assert np.abs(probabilities - exact).max() <= 1e-4
    assert np.isfinite(probabilities).all()


def test_greedy_takes_the_lowest_id_among_equal_maxima() -> None:
    x = np.array([1, 4, -0.0, 4, 4], dtype=np.float32)
    assert sampler(5, SamplingOptions.greedy()).sample(x) == 1
    assert sampler(5, SamplingOptions.greedy(banned=[1])).sample(x) == 3
    assert kept(x, temperature=0.0, top_p=0.5, top_k=2) == [1]


# ---------------------------------------------------------------- against the reference

N_VOCAB = 24

LOGITS = st.lists(
    # Few values, so that ties are common, or any.
    st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, 7.0, -float("inf")])
    | st.floats(-60, 60, width=32)
    | st.floats(-(2.0**100), 2.0**100, width=32),
    min_size=N_VOCAB,
    max_size=N_VOCAB,
).map(lambda values: np.array(values, dtype=np.float32))

TOKENS = st.integers(0, N_VOCAB - 1)
OPTIONS = st.builds(
    SamplingOptions,
    order=st.sampled_from(["rwkv", "openai"]),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 1.8]) | st.floats(1e-3, 20),
    top_p=st.sampled_from([0.0, 0.5, 0.85, 1.0]) | st.floats(0, 1),
    top_k=st.integers(0, N_VOCAB + 2),
    min_p=st.sampled_from([0.0, 0.05, 1.0]) | st.floats(0, 1),
    presence_penalty=st.floats(-3, 3),
    frequency_penalty=st.floats(-3, 3),
    repetition_penalty=st.floats(0.5, 3),
    penalty_decay=st.sampled_from([0.0, 0.996, 1.0]) | st.floats(0, 1),
    logit_bias=st.dictionaries(TOKENS, st.floats(-20, 20), max_size=4),
    banned=st.sets(TOKENS, max_size=3),
    exempt=st.sets(TOKENS, max_size=4),
)
SEEDS = st.integers(0, 2**64 - 1)


@given(OPTIONS, SEEDS, st.lists(st.tuples(LOGITS, TOKENS), min_size=1, max_size=5))
@settings(max_examples=400, deadline=None)
def test_every_step_has_the_bits_of_the_reference(
    options: SamplingOptions, seed: int, steps: list[tuple[F32, int]]
) -> None:
    native = sampler(N_VOCAB, options, seed)
    reference = ReferenceSampler(options, seed, exp=kernel_exp)
    for logits, forced in steps:
        expected = reference.adjusted(logits)
        if np.isneginf(expected).all():
            with pytest.raises(errors.InvalidArgumentError, match="every token is banned"):
                native.sample(logits)
        else:
            assert np.array_equal(native.adjusted(logits), expected)
            ids, probabilities = native.probabilities(logits)
            expected_ids, expected_probabilities = reference.probabilities(logits)
            assert ids.tolist() == expected_ids
            assert probabilities.tobytes() == expected_probabilities.tobytes()
            assert native.sample(logits) == reference.sample(logits)
        native.accept(forced)
        reference.accept(forced)


@given(LOGITS, TOKENS, st.integers(0, N_VOCAB))
@settings(max_examples=100, deadline=None)
def test_logprobs_are_the_log_softmax_of_the_raw_logits(
    logits: F32, token: int, n_top: int
) -> None:
    chosen = sampler(N_VOCAB, SamplingOptions(temperature=0.3, top_k=2, logit_bias={0: 9.0}))
    chosen.accept(token)
    if np.isneginf(logits).all():
        with pytest.raises(errors.InvalidArgumentError, match="every logit"):
            chosen.logprobs(logits, token, n_top)
        return
    expected = logprobs(logits)
    logprob, ids, values = chosen.logprobs(logits, token, n_top)
    order = sorted(range(N_VOCAB), key=lambda i: (-logits[i], i))
    assert ids.tolist() == order[:n_top]
    for value, exact in zip([logprob, *values], expected[[token, *ids]], strict=True):
        # Three float32 roundings, relative to the difference of logits.
        assert value == exact or abs(value - exact) <= 1e-6 * max(1.0, abs(exact))


def test_the_tail_of_a_large_vocabulary_has_the_bits_of_the_reference() -> None:
    rng = np.random.default_rng(3)
    for n_vocab, scale in ((50_304, 1.0), (65_536, 3.0), (65_529, 8.0)):
        x = (rng.normal(0, scale, n_vocab)).astype(np.float32)
        for changes in ({"top_p": 0.9}, {"top_p": 0.999999}, {"top_k": 300}, {"min_p": 0.01}):
            for order in ("rwkv", "openai"):
                options = replace(PLAIN, order=order, temperature=0.8, **changes)
                ids, probabilities = sampler(n_vocab, options).probabilities(x)
                expected = ReferenceSampler(options, 0, exp=kernel_exp).probabilities(x)
                assert ids.tolist() == expected[0]
                assert probabilities.tobytes() == expected[1].tobytes()


def test_the_generator_gives_the_published_vectors() -> None:
    assert philox4x32_10((0, 0, 0, 0), (0, 0)) == (
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    )  # fmt: skip
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    assert philox4x32_10(pi[:4], pi[4:]) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    # The native generator through its draws: 2**12 equal weights show the top 12 bits of u.
    x = np.zeros(4096, dtype=np.float32)
    for seed, index in ((0, 0), (1, 0), (2**64 - 1, 3), (5, 2**40)):
        chosen = sampler(4096, seed=seed)
        chosen.set_generator(seed, index)
        assert chosen.sample(x) == int(uniform(seed, index) * 4096)


def test_draws_follow_the_distribution() -> None:
    x = np.array([0, 1, 2, 3, -1, 2], dtype=np.float32)
    chosen = sampler(6, replace(PLAIN, temperature=1.5, top_k=5), seed=11)
    ids, probabilities = chosen.probabilities(x)
    n = 40_000
    counts = np.zeros(6)
    for _ in range(n):
        token = chosen.sample(x)
        counts[token] += 1
        chosen.accept(token)
    assert counts[4] == 0
    # Five standard deviations of each count; the seed is fixed, so this cannot flicker.
    deviation = np.sqrt(n * probabilities * (1 - probabilities))
    assert (np.abs(counts[ids] - n * probabilities) <= 5 * deviation).all()


# ---------------------------------------------------------------- generator and state


def draws(chosen: Sampler, logits: F32, n: int) -> list[int]:
    tokens = []
    for _ in range(n):
        tokens.append(chosen.sample(logits))
        chosen.accept(tokens[-1])
    return tokens


RANDOM_LOGITS = np.random.default_rng(4).normal(0, 2, 500).astype(np.float32)


def test_a_seed_restarts_the_generator_and_nothing_else() -> None:
    chosen = sampler(500, seed=7)
    first = draws(chosen, RANDOM_LOGITS, 20)
    later = draws(chosen, RANDOM_LOGITS, 20)
    assert chosen.generator == (7, 40)
    chosen.set_generator(7)
    assert draws(chosen, RANDOM_LOGITS, 40) == first + later
    chosen.set_generator(7, 20)
    assert draws(chosen, RANDOM_LOGITS, 20) == later
    chosen.set_generator(8)
    assert draws(chosen, RANDOM_LOGITS, 20) != first
    penalised = sampler(500, SamplingOptions(presence_penalty=5.0))
    penalised.accept(3)
    penalised.set_generator(1)
    assert penalised.adjusted(RANDOM_LOGITS)[3] != RANDOM_LOGITS[3]
    penalised.clear_counts()
    assert np.array_equal(penalised.adjusted(RANDOM_LOGITS), RANDOM_LOGITS)
    assert penalised.generator == (1, 0)


def test_sampling_leaves_the_state_alone() -> None:
    chosen = sampler(500, SamplingOptions(), seed=3)
    draws(chosen, RANDOM_LOGITS, 5)
    state = chosen.export_state()
    token = chosen.sample(RANDOM_LOGITS)
    chosen.probabilities(RANDOM_LOGITS)
    chosen.adjusted(RANDOM_LOGITS)
    chosen.logprobs(RANDOM_LOGITS, 4, 9)
    assert chosen.sample(RANDOM_LOGITS) == token
    assert chosen.export_state() == state


@given(OPTIONS, SEEDS, st.lists(TOKENS, max_size=30))
@settings(max_examples=100, deadline=None)
def test_an_imported_state_continues_with_the_same_tokens(
    options: SamplingOptions, seed: int, history: list[int]
) -> None:
    logits = RANDOM_LOGITS[:N_VOCAB]
    original = sampler(N_VOCAB, options, seed)
    for token in history:
        original.accept(token)
    twin = sampler(N_VOCAB)
    twin.import_state(original.export_state())
    assert SamplingOptions(**twin.options) == options
    assert twin.generator == (seed, len(history))
    assert draws(twin, logits, 10) == draws(original, logits, 10)
    assert twin.export_state() == original.export_state()


def test_the_bytes_of_a_state_are_fixed() -> None:
    options = SamplingOptions(
        order="openai", temperature=0.5, top_p=0.75, top_k=3, min_p=0.125,
        presence_penalty=0.25, frequency_penalty=-0.5, repetition_penalty=1.5, penalty_decay=0.5,
        logit_bias={2: 1.25}, banned=[7], exempt=[1, 5],
    )  # fmt: skip
    chosen = sampler(9, options, seed=2**63)
    for token in (4, 1):
        chosen.accept(token)
    assert chosen.export_state() == b"wkvmsamp" + struct.pack(
        "<IIIIIIIIQdddddddQQ" + "IIIIII" + "ddd",
        *(1, 9, 1, 1, 1, 2, 2, 0, 3),
        *(0.5, 0.75, 0.125, 0.25, -0.5, 1.5, 0.5),
        *(2**63, 2),
        *(2, 7, 1, 5, 1, 4),
        *(1.25, 0.0, 0.5),
    )


def test_a_wrong_state_is_refused_and_changes_nothing() -> None:
    chosen = sampler(9, SamplingOptions(), seed=5)
    chosen.accept(3)
    state = chosen.export_state()
    for wrong, error in (
        (b"", errors.FormatError),
        (state[:-1], errors.FormatError),
        (state + b"\0", errors.FormatError),
        (b"x" * len(state), errors.FormatError),
        (state[:8] + b"\2" + state[9:], errors.UnsupportedError),
        (sampler(10).export_state(), errors.StateMismatchError),
    ):
        with pytest.raises(error):
            chosen.import_state(wrong)
        assert chosen.export_state() == state


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"order": "hf"}, "order is 'hf'; it must be one of rwkv, openai"),
        ({"temperature": -0.5}, "temperature is -0.5; it must be a number finite and at least 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "warm"}, "temperature is 'warm'"),
        ({"top_p": 1.01}, "top_p is 1.01; it must be a number from 0 to 1"),
        ({"min_p": -1}, "min_p is -1; it must be a number from 0 to 1"),
        ({"top_k": -1}, "top_k is -1; it must be an integer from 0 to"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"presence_penalty": 1e4}, "presence_penalty is 10000.0; .* from -1000 to 1000"),
        ({"frequency_penalty": None}, "frequency_penalty is None"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; .* from 0.01 to 100"),
        ({"penalty_decay": 2}, "penalty_decay is 2; .* from 0 to 1"),
        ({"logit_bias": {-1: 2.0}}, "a token of logit_bias is -1"),
        ({"logit_bias": {3: -float("inf")}}, "logit_bias of token 3 is -inf"),
        ({"logit_bias": 5}, "logit_bias is 5; it must map token ids to numbers"),
        ({"logit_bias": None}, "logit_bias is None"),
        ({"logit_bias": [3, 4]}, r"logit_bias is \[3, 4\]"),
        ({"logit_bias": {"3": 1.0, 4: 1.0}}, "a token of logit_bias is '3'"),
        ({"logit_bias": {3: "1"}}, "logit_bias of token 3 is '1'"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"banned": 5}, "banned is 5; it must be a list of token ids"),
        ({"exempt": None}, "exempt is None; it must be a list of token ids"),
        ({"banned": [1, -4]}, "a token of banned is -4"),
        ({"exempt": ["7"]}, "a token of exempt is '7'"),
        ({"seed": 2**64}, "seed is 18446744073709551616; it must be an integer from 0 to"),
        ({"logprobs": -1}, "logprobs is -1"),
    ],
)
def test_an_option_out_of_range_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=words):
        SamplingOptions(**changes)


def test_options_have_one_form() -> None:
    options = SamplingOptions(
        temperature=np.float32(0.5), top_k=np.int64(3), banned={5, 1}, exempt=[2, 2],
        logit_bias={4: 1, 2: np.float32(0.5)},
    )  # fmt: skip
    assert options == SamplingOptions(
        temperature=0.5, top_k=3, banned=(1, 5), exempt=(2,), logit_bias={2: 0.5, 4: 1.0}
    )
    assert list(options.logit_bias) == [2, 4]


def test_presets_are_the_documented_defaults() -> None:
    rwkv = SamplingOptions()
    assert (rwkv.order, rwkv.temperature, rwkv.top_p, rwkv.top_k) == ("rwkv", 1.0, 0.85, 0)
    assert (rwkv.presence_penalty, rwkv.frequency_penalty, rwkv.penalty_decay) == (0.2, 0.2, 0.996)
    openai = SamplingOptions.openai(top_p=0.5)
    assert (openai.order, openai.temperature, openai.top_p) == ("openai", 1.0, 0.5)
    assert (openai.presence_penalty, openai.frequency_penalty, openai.penalty_decay) == (0, 0, 1)
    greedy = SamplingOptions.greedy()
    assert (greedy.temperature, greedy.presence_penalty, greedy.frequency_penalty) == (0, 0, 0)


def test_a_bad_logit_is_named() -> None:
    chosen = sampler(4)
    with pytest.raises(errors.NumericError, match="token 2 is nan"):
        chosen.sample(np.array([0, 1, np.nan, np.inf], dtype=np.float32))
    with pytest.raises(errors.NumericError, match="token 3 is inf"):
        chosen.probabilities(np.array([0, 1, -np.inf, np.inf], dtype=np.float32))
    assert kept([0, 1, -np.inf, 2]) == [0, 1, 3]


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(4),
        np.zeros(5, dtype=np.float32),
        np.zeros((1, 4), dtype=np.float32),
        np.zeros(8, dtype=np.float32)[::2],
        np.zeros(4, dtype=">f4"),
        np.zeros(17, dtype=np.uint8)[1:].view(np.float32),
        [0.0] * 4,
    ],
)
def test_logits_of_another_kind_are_refused(logits: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"contiguous float32 array \[4\]"):
        sampler(4).sample(logits)


def test_misuse_is_a_typed_error() -> None:
    chosen = sampler(4)
    x = np.zeros(4, dtype=np.float32)
    for token in (-1, 4, 2**40):
        with pytest.raises(errors.InvalidArgumentError, match=f"token is {token}"):
            chosen.accept(token)
        with pytest.raises(errors.InvalidArgumentError, match=f"token is {token}"):
            chosen.logprobs(x, token)
    with pytest.raises(errors.InvalidArgumentError, match="n_top is 5"):
        chosen.logprobs(x, 0, 5)
    with pytest.raises(errors.InvalidArgumentError, match="seed is -1"):
        chosen.set_generator(-1)
    with pytest.raises(errors.InvalidArgumentError, match="n_vocab is 0"):
        sampler(0)
    with pytest.raises(errors.InvalidArgumentError, match="banned_ids holds token 4"):
        chosen.set_options(replace(PLAIN, banned=[4]))
    with pytest.raises(errors.UnsupportedError):
        Sampler(4, PLAIN, seed=0, isa="mmx")
    assert chosen.generator == (0, 0)
