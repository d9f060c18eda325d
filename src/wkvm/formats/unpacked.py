"""A converted file with its tensors as they were before they were packed.

A matrix lies in panels of 64 outputs, the last one of 16, 32 or 48: [n_in][64], so that its rows
are the lanes of the panels (native/core/pack.h). Outputs are padded to a multiple of 16 with zeros.
Vectors were widened to float32: they get the matrices' type back if all of them fit it exactly.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wkvm.errors import UnsupportedError
from wkvm.formats.load import model_info
from wkvm.formats.names import is_lora_matrix, is_matrix, is_vector
from wkvm.formats.source import ELEMENT_SIZES, Bytes, Source, TensorInfo, transposed

_PANEL = 64
_ELEMENT_TYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


class UnpackedSource(Source):
    """The checkpoint that a converted file was made from, less the tensors that never run."""

    def __init__(self, packed: Source) -> None:
        """Describe the tensors of a converted file, which it takes over.

        Raises:
            UnsupportedError: its matrices were rounded to int8.
            FormatError: it is damaged.
        """
        info = model_info(packed)
        if info["dtype"] == "int8":
            raise UnsupportedError(
                f"{packed.path} was rounded to int8, which cannot be undone; name the original"
            )
        self._packed = packed
        self.path, self.files, self.kind = packed.path, packed.files, f"{packed.kind}, unpacked"
        self.identity, self.metadata = packed.identity, packed.metadata
        self.origins = [f"{origin}, packed" for origin in packed.origins]
        self._vector_dtype = _ELEMENT_TYPES[info["dtype"]]
        vectors = [i for i, (name, _, _) in enumerate(packed.tensors) if _is_vector(name)]
        if not all(_fits(packed.read(i), self._vector_dtype) for i in vectors):
            self._vector_dtype = "f32"
        self._shapes = {tensor.name: tensor.shape for tensor in packed.tensors}
        self._n_rows = {"emb": info["n_vocab"], "head": info["n_vocab"], "ffn.key": info["n_ffn"]}
        self._n_embd = info["n_embd"]
        self.tensors = [self._describe(tensor) for tensor in packed.tensors]

    def _describe(self, packed: TensorInfo) -> TensorInfo:
        name, dtype, shape = packed
        if _is_vector(name):
            short = (1, 1, *shape) if is_vector(name) else shape
            return TensorInfo(name, self._vector_dtype, short)
        if is_lora_matrix(name):
            rank = self._shapes[name[:-1] + "2"][1]  # only outputs are padded
            sides = (self._n_embd, rank) if name.endswith("1") else (rank, self._n_embd)
            return TensorInfo(name, dtype, sides)
        endings = [n for ending, n in self._n_rows.items() if name.endswith(f"{ending}.weight")]
        return TensorInfo(name, dtype, (endings[0] if endings else self._n_embd, shape[1]))

    def read(self, index: int) -> Bytes:
        """The tensor's bytes as they were."""
        name, dtype, shape = self.tensors[index]
        data = self._packed.read(index)
        if _is_vector(name):
            return _narrow(data, dtype)
        if name.endswith("emb.weight"):  # read by rows, and so never packed
            return data
        n_in = self._shapes[name][1]
        rows = _rows(data.view(f"V{ELEMENT_SIZES[dtype]}").reshape(-1, n_in))
        n_out = shape[1] if is_lora_matrix(name) else shape[0]
        data = rows[:n_out].reshape(-1).view(np.uint8)
        return transposed(data, dtype, (n_out, n_in)) if is_lora_matrix(name) else data

    def evict(self, index: int) -> None:
        """Let the system drop the packed tensor."""
        self._packed.evict(index)

    def close(self) -> None:
        """Close the converted file."""
        self._packed.close()


def _is_vector(name: str) -> bool:
    return not is_matrix(name) and not is_lora_matrix(name)


def _rows(panels: NDArray[Any]) -> NDArray[Any]:
    """The matrix [n_packed, n_in] of panels that lie in an array of that shape."""
    n_packed, n_in = panels.shape
    rows = np.empty_like(panels)
    for begin in range(0, n_packed, _PANEL):
        width = min(_PANEL, n_packed - begin)
        rows[begin : begin + width] = panels[begin : begin + width].reshape(n_in, width).T
    return rows


def _narrow(data: Bytes, dtype: str) -> Bytes:
    """Float32 values as `dtype`, which they must fit; bfloat16 is their upper half."""
    if dtype == "bf16":
        return data.reshape(-1, 4)[:, 2:].reshape(-1)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return data.view("<f4").astype("<f2").view(np.uint8)
    return data


def _fits(data: Bytes, dtype: str) -> bool:
    """Whether float32 values are exact in `dtype`."""
    if dtype == "bf16":
        return not data.reshape(-1, 4)[:, :2].any()
    if dtype == "f16":
        return bool((_narrow(data, dtype).view("<f2") == data.view("<f4")).all())
    return True
