"""A snapshot: one session's state as an immutable value that can continue, bit for bit."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wkvm._engine import SafetensorsFile
from wkvm.errors import FormatError, StateMismatchError
from wkvm.formats.source import TensorInfo
from wkvm.formats.write import OutTensor, write_safetensors

_FORMAT = "1"
_STATE = "state."  # prefix of the state's tensors in the file
_ELEMENTS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "u32": np.dtype("<u4"),
    "u8": np.dtype("u1"),
}
_ELEMENT_NAMES = {dtype: name for name, dtype in _ELEMENTS.items()}


@dataclass(frozen=True)
class Identity:
    """What a state belongs to: it continues only where all of this is the same.

    Attributes:
        fingerprint: of weights, dtype and vocabulary.
        family: ``rwkv7`` or ``rwkvx``.
        policy: of attention; ``none`` for a model without attention.
        policy_options: the policy's options.
        kv_dtype: ``fp16`` or ``fp32``; ``none`` for a model without attention.
    """

    fingerprint: str
    family: str
    policy: str
    policy_options: Mapping[str, int | float]
    kv_dtype: str

    def require(self, other: "Identity") -> None:
        """Raise StateMismatchError unless `other`, a state's identity, is the same."""
        for name, mine in asdict(self).items():
            theirs = getattr(other, name)
            if mine != theirs:
                raise StateMismatchError(
                    f"the state belongs to {name} {theirs!r}, this model has {mine!r}: resume it "
                    "with the model and options it was made with"
                )


@dataclass(frozen=True)
class Snapshot:
    """Everything that a session needs to go on exactly where it was.

    Attributes:
        identity: what the state belongs to.
        tokens: uint32 [n], the tokens that the state has seen.
        pending: the token that was sampled and not yet run, if any.
        state: name -> array, as ``Session.state``, and ``x_last`` [D], the head's last input.
        sampler: the sampler's options, counts and generator, or nothing if none was used.
        parent: id of the snapshot that the session was resumed from, or "".
        lineage: "" if one process computed the state from the first token on; else the id of
            the snapshot that was read from a file.
        id: SHA-256 of all the above.
    """

    identity: Identity
    tokens: NDArray[np.uint32]
    pending: int | None
    state: Mapping[str, NDArray[Any]]
    sampler: bytes
    parent: str
    lineage: str
    id: str

    @classmethod
    def make(
        cls,
        identity: Identity,
        tokens: NDArray[np.uint32],
        pending: int | None,
        state: Mapping[str, NDArray[Any]],
        sampler: bytes,
        parent: str,
        lineage: str,
    ) -> Self:
        """A snapshot of these parts; the arrays become read-only."""
        for array in (tokens, *state.values()):
            array.flags.writeable = False
        parts = (identity, tokens, pending, state, sampler, parent, lineage)
        tensors = _tensors(tokens, pending, state, sampler)
        return cls(*parts, _digest(tensors, _metadata(identity, tokens, parent, lineage)))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write one ``.safetensors`` file, whole or not at all.

        Args:
            path: the file to make.
            overwrite: replace a file that exists.

        Raises:
            FileError: the system refuses, or the file exists.
        """
        tensors = _tensors(self.tokens, self.pending, self.state, self.sampler)
        metadata = _metadata(self.identity, self.tokens, self.parent, self.lineage)
        write_safetensors(
            path,
            [
                OutTensor(
                    TensorInfo(name, _ELEMENT_NAMES[array.dtype], array.shape),
                    partial(np.ascontiguousarray, array),
                )
                for name, array in tensors.items()
            ],
            metadata | {"wkvm.digest": self.id},
            overwrite=overwrite,
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that ``save`` wrote, and check its digest.

        Raises:
            FileError: the system refuses.
            FormatError: not such a file, or a damaged one.
        """
        file = SafetensorsFile(path)
        metadata = file.metadata()
        if metadata.get("wkvm.snapshot") != _FORMAT:
            raise FormatError(f"{path} is not a wkvm snapshot of version {_FORMAT}")
        arrays: dict[str, NDArray[Any]] = {}
        for index, (name, element, shape) in enumerate(file.tensors()):
            if element not in _ELEMENTS:
                raise FormatError(f"{path}: tensor {name} has an unexpected type, {element}")
            arrays[name] = np.array(file.read(index)).view(_ELEMENTS[element]).reshape(shape)
        try:
            identity = Identity(**json.loads(metadata["wkvm.identity"]))
            tokens, pending = arrays.pop("tokens"), arrays.pop("pending")
            sampler = arrays.pop("sampler").tobytes()
            parent, lineage = metadata["wkvm.parent"], metadata["wkvm.lineage"]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"{path} lacks a part of a snapshot, or has a broken one") from error
        if tokens.dtype != np.uint32 or tokens.ndim != 1 or pending.dtype != np.uint32:
            raise FormatError(f"{path}: its tokens are not uint32 [n]")
        if pending.shape not in ((0,), (1,)) or not all(n.startswith(_STATE) for n in arrays):
            raise FormatError(f"{path} holds something else beside a snapshot")
        snapshot = cls.make(
            identity,
            tokens,
            int(pending[0]) if pending.size else None,
            {name.removeprefix(_STATE): array for name, array in arrays.items()},
            sampler,
            parent,
            lineage,
        )
        if snapshot.id != metadata.get("wkvm.digest"):
            raise FormatError(f"{path} is damaged: its digest does not match its content")
        return snapshot


def _tensors(
    tokens: NDArray[np.uint32],
    pending: int | None,
    state: Mapping[str, NDArray[Any]],
    sampler: bytes,
) -> dict[str, NDArray[Any]]:
    """The tensors of the file, sorted by name."""
    arrays = {_STATE + name: array for name, array in state.items()} | {
        "tokens": tokens,
        "pending": np.array([] if pending is None else [pending], dtype=np.uint32),
        "sampler": np.frombuffer(sampler, dtype=np.uint8),
    }
    return dict(sorted(arrays.items()))


def _metadata(
    identity: Identity, tokens: NDArray[np.uint32], parent: str, lineage: str
) -> dict[str, str]:
    return {
        "wkvm.snapshot": _FORMAT,
        "wkvm.identity": json.dumps(asdict(identity), sort_keys=True),
        "wkvm.n_tokens": str(len(tokens)),
        "wkvm.tokens_sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
        "wkvm.parent": parent,
        "wkvm.lineage": lineage,
    }


def _digest(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """SHA-256 over metadata and tensors, each part delimited by its length."""
    digest = hashlib.sha256()
    head = {
        "metadata": dict(sorted(metadata.items())),
        "tensors": [(n, _ELEMENT_NAMES[a.dtype], a.shape) for n, a in tensors.items()],
    }
    text = json.dumps(head).encode()
    digest.update(b"%d:" % len(text) + text)
    for array in tensors.values():
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
