"""Writes trained weights as a checkpoint that wkvm, and the official package, can run.

Canonical names (docs/formats.md): matrices as float16, vectors as float32. The sizes of the
attention's blocks and the vocabulary travel in the metadata.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from model import Shape
from torch import Tensor

from wkvm.formats.source import TensorInfo
from wkvm.formats.write import OutTensor, write_safetensors


def canonical(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The parameters of ``RwkvX`` under canonical names and in canonical shapes."""
    for name, weight in weights.items():
        block, _, rest = name.rpartition(".att.")
        if name.startswith("ln0."):
            yield f"rwkv.blocks.0.{name}", weight
        elif rest == "x":
            for letter, mix in zip("rwkvag", weight, strict=True):
                yield f"rwkv.{block}.att.x_{letter}", mix.view(1, 1, -1)
        elif rest in ("k_k", "k_a"):
            yield f"rwkv.{name}", weight.view(1, 1, -1)
        elif name.endswith(".ffn.x_k"):
            prefix = "" if name.startswith("moba.") else "rwkv."
            yield prefix + name, weight.view(1, 1, -1)
        elif rest.endswith((".down", ".up", ".offset")):
            letter, part = rest.split(".")
            number = {"offset": "0", "down": "1", "up": "2"}[part]
            # [1, 1, D] for the offset; the matrices are [D, rank] and [rank, D]. The gate has no
            # offset: its matrices are g1 and g2 too.
            value = weight.view(1, 1, -1) if part == "offset" else weight
            yield f"rwkv.{block}.att.{letter}{number}", value
        else:
            yield name if name.startswith("moba.") else f"rwkv.{name}", weight


def export(best: Path, vocab: Path, path: Path, matrices: str = "f16") -> None:
    """Write ``path``, a safetensors file, from ``best.pt`` and ``vocab.txt``.

    Args:
        best: the weights.
        vocab: the vocabulary.
        path: the file to make; one that exists is replaced.
        matrices: ``"f16"``, or ``"f32"`` for the very weights that were trained.

    Raises:
        OverflowError: a weight does not fit.
    """
    saved = torch.load(best, weights_only=True)
    shape = Shape(**{**saved["shape"], "lora": tuple(saved["shape"]["lora"])})
    tensors = []
    for name, weight in canonical(saved["model"]):
        is_matrix = weight.ndim == 2 and not name.endswith("r_k")
        dtype = matrices if is_matrix else "f32"
        data = weight.numpy().astype({"f16": np.float16, "f32": np.float32}[dtype])
        if not np.isfinite(data).all():
            raise OverflowError(f"{name} does not fit {dtype}")
        info = TensorInfo(name, dtype, tuple(data.shape))
        tensors.append(OutTensor(info, lambda data=data: data))
    metadata = {
        "wkvm.moba_chunk_size": str(shape.moba_chunk_size),
        "wkvm.moba_topk": str(shape.moba_topk),
        "wkvm.vocab": vocab.read_text(encoding="utf-8"),
    }
    write_safetensors(path, tensors, metadata, overwrite=True)
