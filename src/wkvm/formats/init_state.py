"""Initial states: what state tuning trains, ``blocks.N.att.time_state`` [H, N, N], for zeros.

A head's matrix is square, so no shape says which of its sides is the value and which the key, and
programs disagree:

    [H, value, key]   RWKV-PEFT trains it so (rwkvt/operator/rwkvop.py transposes it for fla, whose
                      states are [key, value]); the rwkv package's states lie so, and RWKV-Runner
                      takes a file of RWKV-7 as it is
    [H, key, value]   web-rwkv's and Ai00's converter transposes ``time_state`` along with the LoRA
                      matrices, into a .safetensors file of nothing but float16; RWKV-PEFT's first
                      version for RWKV-7 (rwkvft/op/rwkvop.py) gave it to fla as it was

So a .safetensors file of nothing but float16 is read as [H, key, value], any other file as
[H, value, key], unless the user says which it is. (For RWKV-5 and 6 the conventions were others.)
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from wkvm.errors import FormatError, InvalidArgumentError, OutOfMemoryError, StateMismatchError
from wkvm.formats.floats import FLOAT_TYPES, as_float32
from wkvm.formats.open import open_checkpoint
from wkvm.formats.source import Source, TensorInfo, shown

#: Which sides of a head's matrix a file names first and second.
Layout = Literal["value-key", "key-value"]

_NAME = re.compile(r"(?:rwkv\.)?blocks\.(0|[1-9][0-9]{0,3})\.att\.time_state", re.ASCII)


@dataclass(frozen=True, eq=False)
class InitState:
    """A state for sessions to begin with; read by ``load``.

    Attributes:
        path: of the file.
        layout: in which the file was read.
        blocks: of each RWKV block, float32 [H, value, key]; read-only.
        id: SHA-256 of the blocks, 64 hexadecimal digits: the lineage of the sessions' snapshots.
    """

    path: Path
    layout: Layout
    blocks: tuple[NDArray[np.float32], ...]
    id: str

    @classmethod
    def load(cls, path: str | Path, layout: Layout | Literal["auto"] = "auto") -> Self:
        """Read a ``.pth`` or ``.safetensors`` file of ``blocks.N.att.time_state``.

        Args:
            path: of the file.
            layout: ``"value-key"`` or ``"key-value"``: which sides the last two dimensions are;
                ``"auto"``: key-value if it is a ``.safetensors`` file of nothing but float16, as
                web-rwkv's converter writes, else value-key, as RWKV-PEFT writes.

        Raises:
            InvalidArgumentError: an unknown `layout`.
            FileError: the system refuses.
            FormatError: the file holds anything else, a block's state is missing, misshapen or not
                finite, or the file is damaged.
            OutOfMemoryError: the state does not fit the memory.
        """
        layouts = get_args(Layout)
        if layout not in ("auto", *layouts):
            raise InvalidArgumentError(
                f"the layout is {layout!r}; it must be auto, {' or '.join(layouts)}"
            )
        with open_checkpoint(path) as source:
            places = _places(source)
            claimed = sum(source.tensors[place].n_bytes for place in places)
            if claimed > sum(file.stat().st_size for file in source.files):
                raise FormatError(
                    f"{source.path}: its tensors take {claimed} bytes, more than the file has: "
                    "they share their storages, which those of no tuned state do"
                )
            if layout == "auto":
                is_webrwkv = source.kind == "safetensors" and {
                    tensor.dtype for tensor in source.tensors
                } == {"f16"}
                layout = "key-value" if is_webrwkv else "value-key"
            try:
                blocks = tuple(_read(source, place, layout) for place in places)
            except MemoryError as error:
                raise OutOfMemoryError(f"no memory for the state in {source.path}") from error
        digest = hashlib.sha256(b"wkvm init state 1\n")
        digest.update(f"{len(blocks)} {blocks[0].shape}\n".encode())
        for block in blocks:
            digest.update(block.data)
        return cls(source.path, layout, blocks, digest.hexdigest())

    def require(self, info: Mapping[str, Any]) -> None:
        """Raise StateMismatchError unless a model of this shape can begin with the state.

        Args:
            info: of the model: ``n_embd``, ``head_size``, ``n_rwkv``, ``n_unused``.
        """
        head_size = info["head_size"]
        expected = (info["n_embd"] // head_size, head_size, head_size)
        actual = self.blocks[0].shape
        if actual != expected:
            raise StateMismatchError(
                f"{self.path}: its time_state has shape {list(actual)}, this model's heads make "
                f"{list(expected)}: it was tuned for another model"
            )
        runs, stored = info["n_rwkv"], info["n_rwkv"] + info["n_unused"]
        if len(self.blocks) not in (runs, stored):
            raise StateMismatchError(
                f"{self.path} has states of {len(self.blocks)} blocks, this model has {stored}: it "
                "was tuned for another model"
            )


def _places(source: Source) -> list[int]:
    """The index of each block's tensor; every tensor is one, and of the same shape."""
    places: dict[int, int] = {}
    for index, tensor in enumerate(source.tensors):
        match = _NAME.fullmatch(tensor.name)
        if match is None:
            raise FormatError(
                f"{source.path}: tensor {shown(tensor.name)} is no initial state, which consists "
                "of blocks.N.att.time_state alone"
            )
        if places.setdefault(int(match[1]), index) != index:
            raise FormatError(f"{source.path}: block {match[1]} has two states")
        _check(source.path, tensor, source.tensors[0])
    if not places:
        raise FormatError(f"{source.path} holds no tensor, and so no initial state")
    if len(places) != max(places) + 1:
        missing = min(set(range(max(places))) - places.keys())
        raise FormatError(
            f"{source.path}: blocks.{missing}.att.time_state is missing; save the state again"
        )
    return [places[block] for block in sorted(places)]


def _check(path: Path, tensor: TensorInfo, first: TensorInfo) -> None:
    shape = tensor.shape
    if len(shape) != 3 or shape[1] != shape[2] or 0 in shape or shape != first.shape:
        raise FormatError(
            f"{path}: tensor {tensor.name} has shape {list(shape)}; one square matrix per head is "
            "expected, as many and as large for every block"
        )
    if tensor.dtype not in FLOAT_TYPES:
        raise FormatError(f"{path}: tensor {tensor.name} is {tensor.dtype}, not a float type")


def _read(source: Source, place: int, layout: Layout) -> NDArray[np.float32]:
    tensor = source.tensors[place]
    state = as_float32(source.read(place), tensor.dtype).reshape(tensor.shape)
    if not np.isfinite(state).all():
        raise FormatError(f"{source.path}: tensor {tensor.name} holds a value that is not finite")
    if layout == "key-value":
        state = state.swapaxes(1, 2)
    state = np.array(state, np.float32, order="C")  # its own: the file's bytes may be mapped
    state.flags.writeable = False
    return state
