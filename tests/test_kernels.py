"""The kernels: exact where the contract says so, and near the float64 truth everywhere else."""

import numpy as np
import pytest
import reference
from numpy.typing import NDArray
from safetensors.numpy import load_file

from wkvm import _kernels as kernels
from wkvm.errors import InvalidArgumentError, UnsupportedError

Floats = NDArray[np.float32]

FUNCTIONS = {
    "exp": (kernels.exp, np.exp),
    "log": (kernels.log, np.log),
    "tanh": (kernels.tanh, np.tanh),
    "sigmoid": (kernels.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
# Largest error in units in the last place, a little above what numerics.md states.
MAX_ULPS = {"exp": 1.2, "log": 1.0, "tanh": 1.5, "sigmoid": 2.7}
EPSILON = float(np.finfo(np.float32).eps)

every_isa = pytest.mark.parametrize("isa", kernels.isas())


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def domain(name: str) -> Floats:
    """Every 1,009th finite float where the function neither overflows nor leaves float32."""
    positive = np.arange(1, 0x7F800000, 1009, dtype=np.uint32).view(np.float32)
    both = np.concatenate([-positive, [np.float32(-0.0), np.float32(0.0)], positive])
    if name == "log":
        return positive
    if name == "exp":
        return both[np.abs(both) <= 88.7]
    return both[both > -87] if name == "sigmoid" else both


@every_isa
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_near_the_float64_truth(name, isa):
    kernel, exact = FUNCTIONS[name]
    x = domain(name)
    with np.errstate(over="ignore"):  # sigmoid's exp(-x) for the largest -x
        truth = exact(x.astype(np.float64))
    smallest = np.finfo(np.float32).smallest_normal
    ulp = np.spacing(np.maximum(np.abs(truth).astype(np.float32), smallest)).astype(np.float64)
    assert np.max(np.abs(kernel(x, isa=isa) - truth) / ulp) <= MAX_ULPS[name]


@every_isa
def test_layer_norm_is_near_the_float64_truth(isa):
    x, weight, bias = normal(5, 768) * 3 + 1, normal(768, seed=1), normal(768, seed=2)
    x64 = x.astype(np.float64)
    expected = reference.layer_norm(x64, weight.astype(np.float64), bias.astype(np.float64))
    # A sum of 768 values of size 3 in 16 lanes: 48 roundings each, and those of the scaling.
    tolerance = 100 * EPSILON * np.abs(expected).max()
    actual = kernels.layer_norm(x, weight, bias, eps=1e-5, isa=isa)
    assert np.abs(actual - expected).max() <= tolerance


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (64, 256), (100, 600)])
def test_matmul_is_near_the_float64_truth(shape, dtype, isa):
    w, x = normal(*shape), normal(9, shape[1], seed=1)
    if dtype == "bfloat16":
        stored = (w.view(np.uint32) >> 16).astype(np.uint16)
        w64 = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    else:
        stored = w.astype(dtype)
        w64 = stored.astype(np.float64)
    expected = x @ w64.T
    # Each of n fma rounds once, relative to a partial sum that is at most sum |x w|.
    bound = shape[1] * EPSILON * (np.abs(x).astype(np.float64) @ np.abs(w64).T)
    assert np.max(np.abs(kernels.matmul(stored, x, isa=isa) - expected) / bound) <= 1


def int8_cases(fixtures) -> list[tuple[str, dict[str, NDArray]]]:
    tensors = load_file(fixtures / "int8" / "matrices.safetensors")
    names = sorted({key.rpartition(".")[0] for key in tensors})
    return [
        (name, {key.rpartition(".")[2]: value for key, value in tensors.items() if name in key})
        for name in names
    ]


@every_isa
def test_int8_goldens_are_met_exactly(fixtures, isa):
    cases = int8_cases(fixtures)
    assert len(cases) == 11
    for name, case in cases:
        q, scale = kernels.quantize(case["w"], isa=isa)
        assert np.array_equal(q, case["q"]), name
        assert np.array_equal(scale, case["scale"]), name
        # Activations are quantised as well: the sum is exact, the scaling rounds three times.
        x_q, x_scale = kernels.quantize(case["x"][None], isa=isa)
        total = (q.astype(np.int64) @ x_q[0].astype(np.int64)).astype(np.float32)
        y = kernels.matmul_i8(q, scale, case["x"][None], isa=isa)[0]
        assert np.array_equal(y, total * (x_scale[0] * scale)), name
        # At most half a step of x on each weight, and float32's rounding.
        step = np.abs(q * scale[:, None].astype(np.float64)).sum(axis=1) * (0.5 * x_scale[0])
        rounding = 4 * EPSILON * np.abs(case["y_dequant_f64"])
        assert np.all(np.abs(y - case["y_dequant_f64"]) <= step * (1 + 1e-6) + rounding), name


@every_isa
def test_int8_of_a_real_shape_is_the_exact_integer_result(isa):
    q, scale = kernels.quantize(normal(300, 1030), isa=isa)
    x = normal(13, 1030, seed=1)
    x_q, x_scale = kernels.quantize(x, isa=isa)
    total = (x_q.astype(np.int64) @ q.astype(np.int64).T).astype(np.float32)
    expected = total * (x_scale[:, None] * scale[None, :])
    assert np.array_equal(kernels.matmul_i8(q, scale, x, isa=isa), expected)


def time_mix_inputs(n_tokens: int, n: int, first_layer: bool) -> dict[str, Floats]:
    rng = np.random.default_rng(n + n_tokens)
    rows = ["r", "k", "v", "w_lora", "a_lora", "g"]
    vectors = ["w0", "a0", "k_k", "k_a", "r_k", "ln_weight", "ln_bias"]
    if not first_layer:
        rows += ["v_first", "v_lora"]
        vectors += ["v0"]
    shapes = dict.fromkeys(rows, (n_tokens, n)) | dict.fromkeys(vectors, (n,))
    shapes["state"] = (n, n)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def time_mix_truth(inputs: dict[str, Floats]) -> tuple[NDArray, NDArray]:
    """The equations of RWKV-7 for one head, in float64: y [T, N] and the state [value, key]."""
    p = {name: array.astype(np.float64)[..., None, :] for name, array in inputs.items()}
    S = inputs["state"].astype(np.float64)[None]
    out = []
    for t in range(len(inputs["r"])):
        r, k, v = p["r"][t], p["k"][t], p["v"][t]
        w = np.exp(-0.606531 * reference.sigmoid(p["w0"] + p["w_lora"][t]))
        a = reference.sigmoid(p["a0"] + p["a_lora"][t])
        kk = reference.l2norm(k * p["k_k"])
        k = k * (1 + (a - 1) * p["k_a"])
        if "v_first" in p:
            v = v + (p["v_first"][t] - v) * reference.sigmoid(p["v0"] + p["v_lora"][t])
        y, S = reference.wkv(S, r=r, w=w, k=k, v=v, kk=kk, a=a)
        y = reference.group_norm(y[None], p["ln_weight"], p["ln_bias"])[0]
        y = y + v * (r * k * p["r_k"]).sum(axis=-1, keepdims=True)
        out.append((y * p["g"][t])[0])
    return np.array(out), S[0]


@every_isa
@pytest.mark.parametrize("first_layer", [False, True])
@pytest.mark.parametrize("n", [16, 48, 64, 128, 256])
def test_time_mix_is_near_the_float64_truth(n, first_layer, isa):
    inputs = time_mix_inputs(6, n, first_layer)
    y, state = kernels.time_mix(**inputs, isa=isa)
    y_truth, state_truth = time_mix_truth(inputs)
    # Sums over up to 256 keys, carried through 6 tokens: 1e-5 of the largest value is 84 epsilon.
    assert np.abs(y - y_truth).max() <= 1e-5 * np.abs(y_truth).max()
    assert np.abs(state - state_truth).max() <= 1e-5 * np.abs(state_truth).max()


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n_keys", "n"), [(1, 64), (17, 64), (300, 64), (40, 16), (40, 128)])
def test_attention_is_near_the_float64_truth(n_keys, n, dtype, isa):
    q = normal(n)
    k = (normal(n_keys, n, seed=1) * 2).astype(dtype)
    v = normal(n_keys, n, seed=2).astype(dtype)
    score = k.astype(np.float64) @ q / np.sqrt(n)
    p = np.exp(score - score.max())
    expected = (p / p.sum()) @ v.astype(np.float64)
    # Scores of size 10 carry an absolute error of some 10 * n roundings, their exponentials a
    # relative one of the same size.
    assert np.abs(kernels.attention(q, k, v, isa=isa) - expected).max() <= 10 * n * EPSILON


@every_isa
def test_attention_over_no_key_is_zero(isa):
    nothing = np.zeros((0, 64), np.float32)
    assert not kernels.attention(normal(64), nothing, nothing, isa=isa).any()


@every_isa
def test_every_set_gives_the_bits_of_scalar(isa):
    x, w = normal(7, 112), normal(50, 112, seed=1)
    q, scale = kernels.quantize(w, isa="scalar")
    keys, values = normal(33, 64, seed=2), normal(33, 64, seed=3)
    calls = [
        *((function, (x,), {}) for function, _ in FUNCTIONS.values()),
        (kernels.relu_squared, (x,), {}),
        (kernels.layer_norm, (x, w[0], w[1]), {"eps": 1e-5}),
        (kernels.matmul, (w, x), {}),
        (kernels.matmul, (w.astype(np.float16), x), {}),
        (kernels.matmul_i8, (q, scale, x), {}),
        (kernels.attention, (normal(64), keys, values), {}),
    ]
    for function, arguments, options in calls:
        actual = function(*arguments, **options, isa=isa)
        expected = function(*arguments, **options, isa="scalar")
        assert actual.tobytes() == expected.tobytes(), function.__name__
    inputs = time_mix_inputs(5, 64, False)
    for actual, expected in zip(
        kernels.time_mix(**inputs, isa=isa), kernels.time_mix(**inputs, isa="scalar"), strict=True
    ):
        assert actual.tobytes() == expected.tobytes()
    for actual, expected in zip(
        kernels.quantize(x, isa=isa), kernels.quantize(x, isa="scalar"), strict=True
    ):
        assert actual.tobytes() == expected.tobytes()


def test_the_inputs_stay_as_they_are():
    inputs = time_mix_inputs(3, 16, False)
    before = {name: array.copy() for name, array in inputs.items()}
    kernels.time_mix(**inputs, isa="scalar")
    assert all(np.array_equal(inputs[name], before[name]) for name in inputs)


def test_strided_and_unaligned_arrays_are_read_as_their_values():
    x = normal(6, 40)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(6, 40)
    expected = kernels.exp(x, isa="scalar")
    assert np.array_equal(kernels.exp(unaligned, isa="scalar"), expected)
    assert np.array_equal(kernels.exp(x.T, isa="scalar"), expected.T)
    w = normal(40, 10).astype(np.float16).T
    assert np.array_equal(
        kernels.matmul(w, x, isa="scalar"), kernels.matmul(w.copy(), x, isa="scalar")
    )


MISUSES = {
    "row widths differ": lambda: kernels.matmul(normal(3, 4), normal(2, 5), isa="scalar"),
    "one dimension": lambda: kernels.matmul(normal(4), normal(2, 4), isa="scalar"),
    "integer weights": lambda: kernels.matmul(np.ones((3, 4), int), normal(2, 4), isa="scalar"),
    "infinite weight": lambda: kernels.matmul(
        np.full((3, 4), np.inf, np.float32), normal(2, 4), isa="scalar"
    ),
    "-128": lambda: kernels.matmul_i8(
        np.full((3, 4), -128, np.int8), normal(3), normal(2, 4), isa="scalar"
    ),
    "too long a row": lambda: kernels.matmul_i8(
        np.zeros((1, 65537), np.int8), normal(1), normal(1, 65537), isa="scalar"
    ),
    "too few scales": lambda: kernels.matmul_i8(
        np.zeros((3, 4), np.int8), normal(2), normal(2, 4), isa="scalar"
    ),
    "not a multiple of 16": lambda: kernels.layer_norm(
        normal(2, 17), normal(17), normal(17), eps=1e-5, isa="scalar"
    ),
    "head size": lambda: kernels.attention(normal(20), normal(3, 20), normal(3, 20), isa="scalar"),
    "keys and values differ": lambda: kernels.attention(
        normal(16), normal(3, 16), normal(4, 16), isa="scalar"
    ),
    "two cache types": lambda: kernels.attention(
        normal(16), normal(3, 16), normal(3, 16).astype(np.float16), isa="scalar"
    ),
    "state": lambda: kernels.time_mix(
        **(time_mix_inputs(2, 16, True) | {"state": normal(16, 8)}), isa="scalar"
    ),
    "half of v's mixing": lambda: kernels.time_mix(
        **time_mix_inputs(2, 16, True), v0=normal(16), isa="scalar"
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_bad_arguments_are_refused(misuse):
    with pytest.raises(InvalidArgumentError) as caught:
        MISUSES[misuse]()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("dtype", [">f4", ">f2", ">u2"])
def test_the_other_byte_order_is_refused(dtype):
    swapped = normal(3, 16).astype(dtype)
    message = "is not in this machine's byte order"
    with pytest.raises(InvalidArgumentError, match=f"^w {message}"):
        kernels.matmul(swapped, normal(2, 16), isa="scalar")
    with pytest.raises(InvalidArgumentError, match=f"^k {message}"):
        kernels.attention(normal(16), swapped, swapped, isa="scalar")
    native = swapped.astype(swapped.dtype.newbyteorder("="))
    if native.dtype.kind == "f":
        with pytest.raises(InvalidArgumentError, match=f"^v {message}"):
            kernels.attention(normal(16), native, swapped, isa="scalar")


def test_another_element_type_is_refused():
    with pytest.raises(TypeError):
        kernels.exp(np.ones(3), isa="scalar")


def test_an_unknown_set_is_refused():
    with pytest.raises(UnsupportedError, match="scalar"):
        kernels.exp(normal(3), isa="sse9")
