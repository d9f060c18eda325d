"""A checkpoint with an adapter merged in while it is read, as one would merge it beforehand.

The arithmetic is fixed, so that a merged model has the same bits, and the same fingerprint, on
every machine. All of it is float32, and every operation is rounded once:

    P = 0;  for k = 0 .. r - 1:  P[o][i] = P[o][i] + B[o][k] * A[k][i]
    LoRA    W' = W + scale * P                          scale = alpha / r
    PiSSA   W' = W + (scale * P - scale * P0)           P0 as P, of the factors at the beginning

W' is then rounded once to the type in which W is stored.
"""

import numpy as np
from numpy.typing import NDArray

from wkvm._engine import default_threads
from wkvm.errors import FormatError, InvalidArgumentError
from wkvm.formats.adapter import Adapter, AdapterFile, scales
from wkvm.formats.floats import as_float32, from_float32
from wkvm.formats.names import is_lora_matrix
from wkvm.formats.source import Bytes, Source

_STRETCH = 512 << 10  # bytes of a product's rows at a time, so that they stay in a near cache


class MergedSource(Source):
    """A checkpoint with an adapter merged in: the same tensors, some with other values."""

    def __init__(self, base: Source, adapter: Adapter) -> None:
        """Check that the adapter fits ``base``, which it takes over.

        Raises:
            InvalidArgumentError: a converted checkpoint; an `alpha` or `init` that the adapter
                lacks, or does not need.
            FileError: the system refuses a file of the adapter.
            FormatError: a damaged adapter, or one of another model.
            UnsupportedError: an adapter of another kind; the message names it.
        """
        if base.kind == "wkvm packed":
            raise InvalidArgumentError(
                f"{base.path} is converted already; merge the adapter into the original"
            )
        infos = {tensor.name: tensor for tensor in base.tensors}
        opened = [base]
        try:
            self._adapter = AdapterFile(adapter.path, infos, is_init=False)
            opened.append(self._adapter.source)
            self._init: AdapterFile | None = None
            if adapter.init is not None:
                self._init = AdapterFile(adapter.init, infos, is_init=True)
                opened.append(self._init.source)
            self._scales = scales(adapter, self._adapter, self._init)
        except BaseException:
            for source in opened[1:]:
                source.close()
            raise
        self._base, self._parts = base, opened
        self.path, self.kind, self.metadata = base.path, f"{base.kind} + adapter", base.metadata
        self.tensors = base.tensors
        self.origins = [
            f"{origin} + adapter" if self._changes(tensor.name) else origin
            for origin, tensor in zip(base.origins, base.tensors, strict=True)
        ]
        self.files = [file for part in opened for file in part.files]
        # The same files with another alpha are other weights.
        alpha = (0.0 if adapter.alpha is None else float(adapter.alpha)).as_integer_ratio()
        self.identity = (*(entry for part in opened for entry in part.identity), (0, 0, *alpha))

    def read(self, index: int) -> Bytes:
        """The tensor's bytes, merged if the adapter changes it.

        Raises:
            FormatError: as ``Source.read``; a value is not finite, or does not fit the stored type.
        """
        tensor = self.tensors[index]
        if not self._changes(tensor.name):
            return self._base.read(index)
        if tensor.name in self._adapter.whole:
            values = self._adapter.values(self._adapter.whole[tensor.name])
        else:
            stored = as_float32(self._base.read(index), tensor.dtype).reshape(tensor.shape)
            is_swapped = is_lora_matrix(tensor.name)  # [in, out]
            values = self._merged(tensor.name, stored.T if is_swapped else stored)
            values = values.T if is_swapped else values
        data = from_float32(values, tensor.dtype)
        if not np.isfinite(as_float32(data, tensor.dtype)).all():
            raise FormatError(
                f"{self.path}: with the adapter, tensor {tensor.name} holds a value that is not "
                f"finite or does not fit {tensor.dtype}"
            )
        return data

    def evict(self, index: int) -> None:
        """Let the system drop the tensor's origin."""
        self._base.evict(index)

    def close(self) -> None:
        """Close the checkpoint and the adapter."""
        for part in self._parts:
            part.close()

    def check_unchanged(self) -> None:
        """Raise FileError if a file of either was replaced or rewritten since it was opened."""
        for part in self._parts:
            part.check_unchanged()

    def _changes(self, name: str) -> bool:
        return name in self._adapter.pairs or name in self._adapter.whole

    def _merged(self, name: str, stored: NDArray[np.float32]) -> NDArray[np.float32]:
        """W' of W [out, in], in stretches of rows, which any number of threads may share."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- 8 ms, and few need it

        scale = np.float32(self._scales[name])
        a, b = self._adapter.factors(name)
        removed = None if self._init is None else self._init.factors(name)
        merged = np.empty(stored.shape, np.float32)
        n_rows = max(1, _STRETCH // (4 * stored.shape[1]))

        def merge(begin: int) -> None:
            rows = slice(begin, begin + n_rows)
            with np.errstate(over="ignore", invalid="ignore"):  # the result is looked at
                change = scale * _product(b[rows], a)
                if removed is not None:
                    change -= scale * _product(removed[1][rows], removed[0])
                np.add(stored[rows], change, out=merged[rows])

        with ThreadPoolExecutor(default_threads()) as pool:
            list(pool.map(merge, range(0, len(stored), n_rows)))
        return merged


def _product(b: NDArray[np.float32], a: NDArray[np.float32]) -> NDArray[np.float32]:
    """B A, [n, in] of b [n, r] and a [r, in]: one outer product after the other.

    A library's matrix product would be faster, and sum in an order that differs from one machine
    to the next.
    """
    total = np.zeros((len(b), a.shape[1]), np.float32)
    term = np.empty_like(total)
    for k in range(len(a)):
        np.multiply(b[:, k : k + 1], a[k], out=term)
        total += term
    return total
