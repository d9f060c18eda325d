"""A snapshot: one session's state as an immutable value that can continue, bit for bit."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from wkvm._engine import SafetensorsFile
from wkvm.errors import FormatError, OutOfMemoryError, StateMismatchError
from wkvm.formats.source import TensorInfo, shown
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

#: Tensors beside those of the state, all of one dimension, and their element types.
_PARTS = {"tokens": "u32", "pending": "u32", "sampler": "u8"}
_STATE_ELEMENTS = ("f32", "f16")

_MAX_IDENTITY = 64 << 10  # characters of its JSON
_MAX_NAME = 64  # characters of a name in it
_ID = re.compile("[0-9a-f]{64}")

#: Field of an identity -> what to do if a state has another one.
_REMEDIES = {
    "family": "resume it with the model that it was made with",
    "dtype": "load the model with dtype={!r}",
    "vocabulary": "load the model with the vocabulary that it was made with (vocab=...)",
    "policy": "load the model with policy={!r}",
    "policy_options": "load the model with {}",
    "kv_dtype": "load the model with kv_dtype={!r}",
    "fingerprint": "these are other weights; load the ones that it was made with",
}


@dataclass(frozen=True)
class Identity:
    """What a state belongs to: it continues only where all of this is the same.

    Attributes:
        family: ``rwkv7`` or ``rwkvx``.
        dtype: of the weights as they run.
        vocabulary: its digest, 64 hexadecimal digits; "" if there is none.
        policy: of attention; ``none`` for a model without attention.
        policy_options: the policy's options; read-only.
        kv_dtype: ``fp16`` or ``fp32``; ``none`` for a model without attention.
        fingerprint: of weights, dtype and vocabulary, 64 hexadecimal digits.
    """

    family: str
    dtype: str
    vocabulary: str
    policy: str
    policy_options: Mapping[str, int | float] = field(hash=False)
    kv_dtype: str
    fingerprint: str

    def __post_init__(self) -> None:
        """Keep a copy of the options that nobody can change."""
        object.__setattr__(self, "policy_options", MappingProxyType(dict(self.policy_options)))

    def require(self, other: "Identity") -> None:
        """Raise StateMismatchError unless `other`, a state's identity, is the same.

        The message names the first field that differs, and what to do about it.
        """
        for name, remedy in _REMEDIES.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                asked = _spelt(theirs) if name == "policy_options" else theirs
                raise StateMismatchError(
                    f"the state was made with {name} {_spelt(theirs)}, this model runs "
                    f"{_spelt(mine)}: {remedy.format(asked)}"
                )

    def to_json(self) -> str:
        """One line of JSON, the same for the same values."""
        entries = {f.name: getattr(self, f.name) for f in fields(self)}
        entries["policy_options"] = dict(self.policy_options)
        return json.dumps(entries, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: it is anything else; says what.
        """
        if len(text) > _MAX_IDENTITY:
            raise ValueError(f"it is longer than {_MAX_IDENTITY >> 10} KiB")
        try:
            entries = json.loads(text)
        except RecursionError as error:
            raise ValueError("it is nested deeply") from error
        names = [f.name for f in fields(cls)]
        if not isinstance(entries, dict) or entries.keys() != set(names):
            raise ValueError(f"it is not an object of {', '.join(names)}")
        options = entries["policy_options"]
        for name in names:
            if name != "policy_options" and not _is_name(entries[name]):
                raise ValueError(f"{name} is not a short text")
        if not isinstance(options, dict) or not all(map(_is_name, options)):
            raise ValueError("policy_options is not an object of names and numbers")
        for name, value in options.items():
            if not _is_option(value):
                raise ValueError(f"policy_options gives {shown(name)} no plain number")
        return cls(**entries)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME and value.isprintable()


def _is_option(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _spelt(value: object) -> str:
    """A value of an identity in a message."""
    if isinstance(value, Mapping):
        return shown(", ".join(f"{k}={v}" for k, v in sorted(value.items()))) or "no options"
    return repr(value) if value else "none"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything that a session needs to go on exactly where it was.

    An immutable value: two snapshots of the same content have the same id, are equal, and hash
    alike.

    Attributes:
        identity: what the state belongs to.
        tokens: uint32 [n], the tokens that the state has seen.
        pending: the token that was sampled and not yet run, if any.
        state: name -> array, as ``Session.state``, and ``x_last`` [D], the head's last input;
            read-only.
        sampler: the sampler's options, counts and generator, or nothing if none was used.
        parent: id of the snapshot that the session was resumed from, or "".
        lineage: "" if one process computed the state from zeros and the first token on; else the
            id of the snapshot that was read from a file, or of the initial state it began with.
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
        """A snapshot of these parts; the arrays become its own, and read-only."""
        for array in (tokens, *state.values()):
            array.flags.writeable = False
        frozen = MappingProxyType(dict(state))
        parts = (identity, tokens, pending, frozen, sampler, parent, lineage)
        tensors = _tensors(tokens, pending, frozen, sampler)
        return cls(*parts, _digest(tensors, _metadata(identity, tokens, parent, lineage)))

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a snapshot of the same content."""
        return self.id == other.id if isinstance(other, Snapshot) else NotImplemented

    def __hash__(self) -> int:
        """Equal for equal snapshots."""
        return hash(self.id)

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

        Nothing is copied before the file's description is known to be that of a snapshot. Whether
        the state fits a model is for ``Session.restore`` to say.

        Raises:
            FileError: the system refuses.
            FormatError: not such a file, or a damaged one.
            UnsupportedError: another kind of file.
            OutOfMemoryError: the state does not fit the memory.
        """
        file = SafetensorsFile(path)
        metadata = file.metadata()
        if metadata.get("wkvm.snapshot") != _FORMAT:
            raise FormatError(
                f"{path} is not a wkvm snapshot of version {_FORMAT}: name a file that a session "
                "saved"
            )
        try:
            identity = Identity.from_json(metadata.get("wkvm.identity", ""))
        except ValueError as error:
            raise _broken(path, f"wkvm.identity is wrong: {error}") from error
        parent, lineage = metadata.get("wkvm.parent"), metadata.get("wkvm.lineage")
        if not _is_id(parent) or not _is_id(lineage):
            raise _broken(path, "wkvm.parent or wkvm.lineage is not the id of a snapshot")
        infos = [TensorInfo(*described) for described in file.tensors()]
        _check_tensors(path, infos)
        try:
            arrays = {
                name: np.array(file.read(i)).view(_ELEMENTS[element]).reshape(shape)
                for i, (name, element, shape) in enumerate(infos)
            }
            pending = arrays["pending"]
            snapshot = cls.make(
                identity,
                arrays["tokens"],
                int(pending[0]) if pending.size else None,
                {
                    name.removeprefix(_STATE): array
                    for name, array in arrays.items()
                    if name not in _PARTS
                },
                arrays["sampler"].tobytes(),
                parent,
                lineage,
            )
        except MemoryError as error:
            raise OutOfMemoryError(f"no memory for the state in {path}") from error
        expected = _metadata(identity, snapshot.tokens, parent, lineage)
        if metadata != expected | {"wkvm.digest": snapshot.id}:
            raise _broken(path, "its digest does not match its content")
        return snapshot


def _broken(path: str | Path, why: str) -> FormatError:
    return FormatError(f"{path} is a damaged snapshot: {why}; save it again")


def _is_id(text: str | None) -> TypeGuard[str]:
    """Whether this is a snapshot's id, or "" in its place."""
    return text is not None and (text == "" or _ID.fullmatch(text) is not None)


def _check_tensors(path: str | Path, infos: list[TensorInfo]) -> None:
    """Raise FormatError unless these are the tensors of a snapshot, whatever their data."""
    for name, element, shape in infos:
        where = f"tensor {shown(name)} of type {element} and shape {list(shape)}"
        if name in _PARTS:
            is_right = element == _PARTS[name] and len(shape) == 1
            if not is_right or (name == "pending" and shape[0] > 1):
                raise _broken(path, f"it has a {where}")
        elif not name.startswith(_STATE) or element not in _STATE_ELEMENTS:
            raise _broken(path, f"{where} is no part of a state")
    if missing := _PARTS.keys() - {info.name for info in infos}:
        raise _broken(path, f"it has no tensor {min(missing)}")


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
        "wkvm.identity": identity.to_json(),
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
