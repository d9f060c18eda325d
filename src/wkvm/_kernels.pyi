"""Types of the pybind11 module ``_kernels``."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]

def isas() -> list[str]: ...
def exp(x: _Floats, *, isa: str) -> _Floats: ...
def log(x: _Floats, *, isa: str) -> _Floats: ...
def tanh(x: _Floats, *, isa: str) -> _Floats: ...
def sigmoid(x: _Floats, *, isa: str) -> _Floats: ...
def relu_squared(x: _Floats, *, isa: str) -> _Floats: ...
def layer_norm(x: _Floats, weight: _Floats, bias: _Floats, *, eps: float, isa: str) -> _Floats: ...
def quantize(x: _Floats, *, isa: str) -> tuple[NDArray[np.int8], _Floats]: ...
def matmul(w: NDArray[np.float32 | np.float16 | np.uint16], x: _Floats, *, isa: str) -> _Floats: ...
def matmul_i8(w: NDArray[np.int8], w_scale: _Floats, x: _Floats, *, isa: str) -> _Floats: ...
def time_mix(
    *,
    r: _Floats,
    k: _Floats,
    v: _Floats,
    w_lora: _Floats,
    a_lora: _Floats,
    g: _Floats,
    w0: _Floats,
    a0: _Floats,
    k_k: _Floats,
    k_a: _Floats,
    r_k: _Floats,
    ln_weight: _Floats,
    ln_bias: _Floats,
    state: _Floats,
    v_first: _Floats | None = None,
    v_lora: _Floats | None = None,
    v0: _Floats | None = None,
    ln_eps: float = 64e-5,
    isa: str,
) -> tuple[_Floats, _Floats]: ...
def attention(
    q: _Floats,
    k: NDArray[np.float32 | np.float16],
    v: NDArray[np.float32 | np.float16],
    *,
    isa: str,
) -> _Floats: ...
