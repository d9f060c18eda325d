"""A checkpoint as wkvm sees it once it is open: what is in it, and what it makes of a prompt."""

from pathlib import Path

import engines

import wkvm
from wkvm.formats.open import open_checkpoint

#: Name -> type, shape, bytes.
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def read_all(path: Path) -> Tensors:
    """Every tensor of a checkpoint; each has an origin."""
    with open_checkpoint(path) as source:
        assert len(source.origins) == len(source.tensors)
        return {
            tensor.name: (tensor.dtype, tensor.shape, source.read(i).tobytes())
            for i, tensor in enumerate(source.tensors)
        }


def bits(path: Path, prompt: list[int]) -> engines.Bits:
    """Of the logits and the state after a prompt."""
    return engines.run_bits(wkvm.load(path, threads=1).session(), prompt)
