"""Float types as NumPy computes with them, bfloat16 included."""

import numpy as np
from numpy.typing import NDArray

from wkvm.formats.source import Bytes

#: The element types that weights and states may have.
FLOAT_TYPES = ("f32", "f16", "bf16")


def as_float32(data: Bytes, dtype: str) -> NDArray[np.float32]:
    """Elements of one of ``FLOAT_TYPES``, exactly; float32 ones are a view of `data`."""
    if dtype == "bf16":
        wide = data.view("<u2").astype("<u4")
        wide <<= 16
        return wide.view("<f4")
    return data.view("<f2" if dtype == "f16" else "<f4").astype("<f4", copy=False)


def from_float32(values: NDArray[np.float32], dtype: str) -> Bytes:
    """Finite values in one of ``FLOAT_TYPES``, rounded to the nearest, ties to even.

    What is too large becomes infinite.
    """
    values = np.ascontiguousarray(values, "<f4").reshape(-1)
    data: Bytes
    if dtype == "bf16":
        bits = values.view("<u4")
        data = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").view(np.uint8)
    elif dtype == "f16":
        with np.errstate(over="ignore"):
            data = values.astype("<f2").view(np.uint8)
    else:
        data = values.view(np.uint8)
    return data
