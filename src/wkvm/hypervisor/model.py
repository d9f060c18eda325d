"""A loaded model: weights on a device, a tokenizer, and the sessions that run on it."""

from collections.abc import Iterable
from functools import cached_property
from os import PathLike, urandom
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wkvm._engine import Sampler
from wkvm.backends.base import Backend, Logits, Tokens
from wkvm.backends.cpu import open_backend
from wkvm.bundled import bundled_model_path
from wkvm.errors import InvalidArgumentError, UnsupportedError
from wkvm.formats.fingerprint import model_fingerprint
from wkvm.formats.load import LoadedModel, Progress, load_model, model_info
from wkvm.formats.source import Source
from wkvm.formats.vocabulary import check_fits, recorded_tokenizer
from wkvm.hypervisor import policy as policies
from wkvm.hypervisor.sampling import SamplingOptions, exempt_tokens
from wkvm.hypervisor.session import Session
from wkvm.hypervisor.snapshot import Identity, Snapshot
from wkvm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from wkvm.formats.adapter import Adapter
    from wkvm.formats.init_state import InitState

_WORLD_SIZE = 65536  # rows of the head; the vocabulary itself ends at 65,529
_BYTES_SIZE = 256


class Model:
    """Weights on a device and the slots of its sessions; made by ``load``."""

    def __init__(
        self,
        loaded: LoadedModel,
        backend: Backend,
        tokenizer: Tokenizer | None,
        policy: str,
        policy_options: dict[str, int | float],
        kv_dtype: str,
    ) -> None:
        self._loaded = loaded
        self._tokenizer = tokenizer
        self._policy = policy
        self._policy_options = policy_options
        self._kv_dtype = kv_dtype
        self._identity: Identity | None = None
        self._is_identity_fresh = False
        self.backend = backend
        self.info = loaded.model.info()

    @property
    def isa(self) -> str:
        """The instruction set that runs."""
        return str(self.backend.info()["isa"])

    @property
    def threads(self) -> int:
        """How many threads a forward uses."""
        return int(self.backend.info()["n_threads"])

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, opened when it is first needed.

        Raises:
            InvalidArgumentError: none was named, the checkpoint holds none, and none is known for
                a vocabulary of this size.
        """
        if self._tokenizer is None:
            self._tokenizer = _needed_tokenizer(self.info["n_vocab"])
        return self._tokenizer

    @property
    def identity(self) -> Identity:
        """What every state of this model belongs to. The weights may have to be read once.

        Raises:
            FileError: the checkpoint is not there any more, or has changed.
        """
        return self.identity_for(is_foreign=False)

    def identity_for(self, *, is_foreign: bool) -> Identity:
        """The identity that a state is compared with.

        Args:
            is_foreign: the state comes from a file: the weights are read anew, once, instead of
                trusting a digest that some process left in the cache.
        """
        if self._identity is None or (is_foreign and not self._is_identity_fresh):
            has_attention = self.info["n_attn"] > 0
            tokenizer = self._tokenizer or _usual_tokenizer(self.info["n_vocab"])
            vocabulary = "" if tokenizer is None else tokenizer.digest
            weights = self._loaded.weights_digest(use_cache=not is_foreign)
            self._identity = Identity(
                family=self.info["family"],
                dtype=self.info["dtype"],
                vocabulary=vocabulary,
                policy=self._policy if has_attention else "none",
                policy_options=self._policy_options if has_attention else {},
                kv_dtype=self._kv_dtype if has_attention else "none",
                fingerprint=model_fingerprint(weights, self.info["dtype"], vocabulary),
            )
            self._is_identity_fresh = is_foreign
        return self._identity

    @property
    def fingerprint(self) -> str:
        """SHA-256 of weights, their dtype, and the vocabulary: 64 hexadecimal digits."""
        return self.identity.fingerprint

    @cached_property
    def exempt_tokens(self) -> tuple[int, ...]:
        """The tokens that RWKV's penalties do not count; none without a tokenizer."""
        tokenizer = self._tokenizer or _usual_tokenizer(self.info["n_vocab"])
        if tokenizer is None:
            return ()
        return tuple(t for t in exempt_tokens(tokenizer) if t < self.info["n_vocab"])

    def stats(self) -> dict[str, Any]:
        """Slots in use, and counters of forwards, tokens and the nanoseconds inside them."""
        return self.backend.info()

    def session(self, init_state: "InitState | str | Path | None" = None) -> Session:
        """A new session that has seen no token.

        Args:
            init_state: what it begins with in place of zeros, as state tuning made it, or the file
                of one (``InitState.load`` says how it is read, and reads it once for many).

        Raises:
            StateMismatchError: the initial state is one of another model.
            FileError, FormatError: as ``InitState.load``.
            NoSlotError: every slot is in use.
        """
        if init_state is None:
            return Session(self)
        from wkvm.formats.init_state import InitState  # noqa: PLC0415 -- few need it

        if not isinstance(init_state, InitState):
            if not isinstance(init_state, str | PathLike):
                raise InvalidArgumentError(
                    f"init_state is {init_state!r}; it must be an initial state or the path of one"
                )
            init_state = InitState.load(init_state)
        init_state.require(self.info)
        return Session(self, init_state)

    def resume(self, source: Snapshot | str | Path) -> Session:
        """A session that continues a snapshot, or a file that ``save`` wrote, bit for bit.

        Raises:
            StateMismatchError: it belongs to another model, policy or KV type.
            FileError, FormatError: the file cannot be read, or is damaged.
            NoSlotError: every slot is in use.
        """
        if not isinstance(source, Snapshot | str | PathLike):
            raise InvalidArgumentError(f"{source!r} is neither a snapshot nor the path of one")
        is_foreign = not isinstance(source, Snapshot)
        snapshot = source if isinstance(source, Snapshot) else Snapshot.load(source)
        session = Session(self)
        try:
            session.restore(snapshot, is_foreign=is_foreign)
        except BaseException:
            session.close()
            raise
        return session

    def forward(
        self, rows: Iterable[tuple[Session, Tokens]], logits: Logits = "last"
    ) -> list[NDArray[np.float32] | None]:
        """Run one ragged batch: every session's tokens, in one pass over the weights.

        Args:
            rows: (session, tokens), each session at most once.
            logits: as in ``Session.forward``, for every row.

        Returns:
            In order of the rows: float32 [V] for "last", [T, V] for "all", None for "none".

        Raises:
            InvalidArgumentError: as ``Session.forward``, or a session of another model, or twice.
            CacheFullError, ClosedError: as ``Session.forward``. No session has changed.
            NumericError: the message names the row; that session is spoilt, the others are
                complete, but their logits are lost with this call (``Session.logits``).
        """
        rows = tuple(rows)
        for session, _ in rows:
            if not isinstance(session, Session) or session.model is not self:
                raise InvalidArgumentError(
                    f"a row begins with {session!r}, no session of this model"
                )
        slots = [session.slot for session, _ in rows]
        runs = [session.begin(tokens) for session, tokens in rows]
        result = self.backend.forward(tuple(zip(slots, runs, strict=True)), logits)
        for session, _ in rows:
            session.end()
        if logits == "none":
            return [None] * len(rows)
        if logits == "last":
            return list(result)
        parts = np.split(result, np.cumsum([len(run) for run in runs])[:-1])
        return [part[-len(tokens) :] for part, (_, tokens) in zip(parts, rows, strict=True)]

    def new_sampler(self, options: SamplingOptions) -> Sampler:
        """A sampler for this vocabulary; without a seed it starts anywhere."""
        seed = int.from_bytes(urandom(8)) if options.seed is None else options.seed
        return Sampler(self.backend.n_vocab, options, seed=seed)


def load(
    path: str | Path | None = None,
    *,
    dtype: str = "auto",
    kv_dtype: str = "fp16",
    policy: str = "moba",
    max_cache_len: int | None = None,
    n_slots: int = 8,
    threads: int | None = None,
    vocab: str | Path | Tokenizer | None = None,
    adapter: "Adapter | str | Path | None" = None,
    device: str = "cpu",
    progress: Progress | None = None,
    **policy_options: int | float,
) -> Model:
    """Load a model.

    Args:
        path: a checkpoint: ``.safetensors``, its shards' index or their folder, ``.pth``, or a
            file that ``wkvm convert`` wrote; None: the small model that comes with wkvm.
        dtype: of the big matrices: ``"fp32"``, ``"fp16"``, ``"bf16"``, ``"int8"``, or
            ``"auto"``: as stored.
        kv_dtype: of the KV cache: ``"fp16"`` or ``"fp32"``.
        policy: of attention: ``"full"``, ``"moba"``, ``"window"``, ``"memory"``.
        max_cache_len: tokens that the KV cache of one session may hold; None: 65,536.
        n_slots: how many sessions may be open at once.
        threads: of one forward; None: the physical cores that this process may use.
        vocab: a vocabulary file, ``"world"``, ``"bytes"``, or a tokenizer; None: the one in the
            checkpoint's metadata, or else by the size of the model's vocabulary.
        adapter: a LoRA or PiSSA adapter to merge into the weights, or the path of one that says
            all of itself.
        device: ``"cpu"``.
        progress: called with (bytes done, bytes in all) while weights are packed.
        policy_options: ``moba_chunk_size``, ``moba_topk``, ``window_sinks``, ``window_size``,
            ``memory_keep_tokens``, ``memory_keep_ratio``; by default the file's, else those of
            the design.

    Raises:
        FileError, FormatError, UnsupportedError: the file cannot be opened, is not what it claims
            to be, or is nothing that wkvm runs; an instruction set or device that is not there.
        InvalidArgumentError: an option out of range.
        OutOfMemoryError: weights or slots do not fit.
    """
    if device != "cpu":
        raise UnsupportedError(f'device is {device!r}; this build of wkvm runs on "cpu"')
    if path is None:
        path = bundled_model_path()
    if not isinstance(path, str | PathLike):
        raise InvalidArgumentError(f"path is {path!r}; it must be the path of a checkpoint")
    loaded = load_model(path, dtype, progress, None if adapter is None else _opened(adapter))
    n_vocab = loaded.model.info()["n_vocab"]
    if vocab is None:
        tokenizer = recorded_tokenizer(loaded.path, loaded.metadata, n_vocab, Tokenizer)
    else:
        tokenizer = _named_tokenizer(vocab, n_vocab)
    options = policies.resolve(policy, policy_options, loaded.policy_defaults)
    backend = open_backend(
        loaded.model,
        n_slots=n_slots,
        threads=threads,
        kv_dtype=kv_dtype,
        policy=policy,
        max_cache_len=max_cache_len,
        **options,
    )
    return Model(loaded, backend, tokenizer, policy, options, kv_dtype)


def _opened(adapter: "Adapter | str | Path") -> "Adapter":
    from wkvm.formats.adapter import Adapter  # noqa: PLC0415 -- few need it

    return adapter if isinstance(adapter, Adapter) else Adapter(adapter)


def checkpoint_tokenizer(source: Source) -> Tokenizer:
    """The tokenizer that ``load`` gives an open checkpoint; packs nothing.

    Raises:
        FormatError, UnsupportedError: as ``load``.
        InvalidArgumentError: as ``Model.tokenizer``.
    """
    n_vocab = model_info(source)["n_vocab"]
    recorded = recorded_tokenizer(source.path, source.metadata, n_vocab, Tokenizer)
    return recorded or _needed_tokenizer(n_vocab)


def _named_tokenizer(vocab: str | Path | Tokenizer, n_vocab: int) -> Tokenizer:
    if not isinstance(vocab, str | PathLike | Tokenizer):
        raise InvalidArgumentError(f"vocab is {vocab!r}; it must be a name, a path or a tokenizer")
    tokenizer = vocab if isinstance(vocab, Tokenizer) else Tokenizer.named(vocab)
    check_fits(tokenizer, n_vocab)
    return tokenizer


def _needed_tokenizer(n_vocab: int) -> Tokenizer:
    tokenizer = _usual_tokenizer(n_vocab)
    if tokenizer is None:
        raise InvalidArgumentError(
            f"no vocabulary is known for {n_vocab} entries: name one with vocab=FILE (--vocab FILE)"
        )
    return tokenizer


def _usual_tokenizer(n_vocab: int) -> Tokenizer | None:
    if n_vocab == _WORLD_SIZE:
        return Tokenizer.world()
    return Tokenizer.byte_level() if n_vocab == _BYTES_SIZE else None
