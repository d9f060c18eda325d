"""Types of the pybind11 module ``_kernels``."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

def isas() -> list[str]: ...
def exp(x: Floats, *, isa: str) -> Floats: ...
def log(x: Floats, *, isa: str) -> Floats: ...
def tanh(x: Floats, *, isa: str) -> Floats: ...
def sigmoid(x: Floats, *, isa: str) -> Floats: ...
def relu_squared(x: Floats, *, isa: str) -> Floats: ...
def layer_norm(x: Floats, weight: Floats, bias: Floats, *, eps: float, isa: str) -> Floats: ...
def quantize(x: Floats, *, isa: str) -> tuple[NDArray[np.int8], Floats]: ...
def matmul(w: NDArray[np.float32 | np.float16 | np.uint16], x: Floats, *, isa: str) -> Floats: ...
def matmul_i8(w: NDArray[np.int8], w_scale: Floats, x: Floats, *, isa: str) -> Floats: ...
def time_mix(
    *,
    r: Floats,
    k: Floats,
    v: Floats,
    w_lora: Floats,
    a_lora: Floats,
    g: Floats,
    w0: Floats,
    a0: Floats,
    k_k: Floats,
    k_a: Floats,
    r_k: Floats,
    ln_weight: Floats,
    ln_bias: Floats,
    state: Floats,
    v_first: Floats | None = None,
    v_lora: Floats | None = None,
    v0: Floats | None = None,
    ln_eps: float = 64e-5,
    isa: str,
) -> tuple[Floats, Floats]: ...
def attention(
    q: Floats,
    k: NDArray[np.float32 | np.float16],
    v: NDArray[np.float32 | np.float16],
    *,
    isa: str,
) -> Floats: ...
