"""A session: the tokens it has seen, the slot that holds its state, and its sampler."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from wkvm._engine import token_array
from wkvm.backends.base import Logits, Tokens
from wkvm.errors import ClosedError, InvalidArgumentError, StateMismatchError
from wkvm.hypervisor.generation import Generation
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.hypervisor.snapshot import Snapshot

if TYPE_CHECKING:
    from wkvm._engine import Sampler
    from wkvm.formats.init_state import InitState
    from wkvm.hypervisor.model import Model


class Session:
    """One conversation with a model; made by ``Model.session``, ``Model.resume`` and ``fork``.

    It holds one of the model's slots until it is closed, leaves its ``with`` block, or is garbage.
    One thread at a time may use a session; sessions of one model in several threads take turns.
    """

    def __init__(self, model: "Model", init_state: "InitState | None" = None) -> None:
        self._slot: int | None = None
        self._model = model
        self._init_state = init_state
        self._slot = model.backend.acquire()
        self._tokens = array("I")
        self._pending: int | None = None
        # What the engine was last asked to run, until it is known to have run: an interrupt may
        # come between the engine's return and the note of it.
        self._running: tuple[int, NDArray[np.uint32]] | None = None
        self._sampler: Sampler | None = None
        self._parent = ""
        self._lineage = ""
        self.n_generations = 0  # begun so far; only the last may go on
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Put the initial state, if there is one, into a slot of zeros."""
        if self._init_state is not None:
            state = self._model.backend.export_state(self.slot)
            for i in range(self._model.info["n_rwkv"]):
                state[f"rwkv.{i}.wkv"] = self._init_state.blocks[i]
            self._model.backend.import_state(self.slot, 0, state)
            self._lineage = self._init_state.id

    def __enter__(self) -> Self:
        """The session itself; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()

    def __del__(self) -> None:
        """Give the slot back at the model's next turn."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self._model.backend.abandon(slot)

    def close(self) -> None:
        """Give the slot back. Closing twice is harmless; any other use raises ClosedError."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self._model.backend.release(slot)

    @property
    def slot(self) -> int:
        """The slot that holds the state. Raises ClosedError after ``close``."""
        if self._slot is None:
            raise ClosedError("the session is closed: open another, or resume a snapshot")
        if self._running is not None:
            self._settle(self._slot, *self._running)
        return self._slot

    def _settle(self, slot: int, n_before: int, run: NDArray[np.uint32]) -> None:
        """Find out whether the slot has run what it was last asked to."""
        if self._model.backend.n_tokens(slot) > n_before:
            self._tokens = self._tokens[:n_before]
            self._tokens.frombytes(run.tobytes())
            self._pending = None
        self._running = None

    @property
    def model(self) -> "Model":
        """The model that the session runs on."""
        return self._model

    @property
    def tokens(self) -> list[int]:
        """The tokens of the conversation, in order; a copy. The last may still be ``pending``.

        Raises:
            ClosedError: the session is closed.
        """
        _ = self.slot
        return self._tokens.tolist() + ([] if self._pending is None else [self._pending])

    @property
    def pending(self) -> int | None:
        """The token that was sampled and not yet run; whatever is run next is run after it."""
        _ = self.slot
        return self._pending

    # ---- running tokens

    def forward(
        self, tokens: Tokens, logits: Logits = "last", out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32] | None:
        """Run tokens.

        Args:
            tokens: at least one token id.
            logits: ``"last"``: of the last token; ``"all"``: of each of `tokens`; ``"none"``.
            out: contiguous float32 array to write the logits to.

        Returns:
            float32 [V] for "last", [T, V] for "all" (`out` itself, in its own shape, if it was
            given), None for "none".

        Raises:
            InvalidArgumentError: no tokens, a token that the vocabulary lacks, a wrong `out`.
            CacheFullError: the tokens do not fit ``max_cache_len``. The state is unchanged, as
                for any error but the next.
            NumericError: a non-finite activation; the state is spoilt until ``reset``.
            ClosedError: the session is closed.
        """
        # A decode step comes by here with cold caches: every call that it saves is a microsecond.
        slot = self._slot
        if slot is None or self._running is not None:
            slot = self.slot
        if self._pending is not None:
            return self._forward_after_pending(slot, tokens, logits, out)
        run = token_array(tokens)
        self._running = len(self._tokens), run
        result = self._model.backend.forward(((slot, run),), logits, out)
        self._tokens.frombytes(run.tobytes())
        self._running = None
        if logits == "none":
            return None
        return result if out is not None or logits == "all" else result[0]

    def _forward_after_pending(
        self, slot: int, tokens: Tokens, logits: Logits, out: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """``forward`` with the pending token in front, whose own logits nobody asked for."""
        backend = self._model.backend
        if logits != "all":
            result = backend.forward(((slot, self.begin(tokens)),), logits, out)
            self.end()
            if logits == "none":
                return None
            return result if out is not None else result[0]
        if out is not None:
            _check_out(out, len(tokens) * backend.n_vocab)
        result = backend.forward(((slot, self.begin(tokens)),), logits)[1:]
        self.end()
        if out is None:
            return result
        out.reshape(result.shape)[...] = result
        return out

    def begin(self, tokens: Tokens) -> NDArray[np.uint32]:
        """What the slot must run for `tokens`: those, after the pending one if there is one.

        No tokens stay no tokens, which the engine refuses. ``end`` must follow once it has run.

        Raises:
            InvalidArgumentError: not a sequence of token ids.
        """
        run = token_array(tokens)
        if self._pending is not None and len(run):
            run = np.concatenate((np.array([self._pending], dtype=np.uint32), run))
        self._running = len(self._tokens), run
        return run

    def end(self) -> None:
        """Note that the slot has run what ``begin`` gave."""
        if self._running is not None:
            self._tokens.frombytes(self._running[1].tobytes())
            self._running = None
            self._pending = None

    def feed(self, text: str) -> None:
        """Run the tokens of `text`; empty text does nothing.

        Raises:
            InvalidArgumentError: the model has no tokenizer, or the text is not valid Unicode.
            CacheFullError, NumericError, ClosedError: as ``forward``.
        """
        _ = self.slot
        tokens = self._model.tokenizer.encode(text)
        if tokens:
            self.forward(tokens, "none")

    def logits(self) -> NDArray[np.float32]:
        """Logits after the last token, float32 [V]; the same bits whenever they are asked for.

        Raises:
            InvalidArgumentError: the session has seen no token yet.
            ClosedError: the session is closed.
        """
        slot = self.slot
        if self._pending is None:
            return self._model.backend.slot_logits(slot)
        self._running = len(self._tokens), token_array((self._pending,))
        result = self._model.backend.forward(((slot, self._running[1]),), "last")
        self.end()
        return result.reshape(-1)

    # ---- generating

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        **options: Any,
    ) -> Iterator[str]:
        """Sample tokens and yield their text, whole characters at a time.

        Args:
            max_tokens: stop after this many tokens; None: at the end of the text.
            stop: strings that end the text; they are not yielded. They may span tokens.
            ignore_eos: go on after token 0, which ends a text.
            options: fields of ``SamplingOptions``. A seed restarts the generator; without one it
                goes on with its state. What the penalties count goes on until ``reset``. In RWKV's
                order, blanks and digits are exempt unless ``exempt`` says otherwise.

        Raises:
            InvalidArgumentError: an option out of range, no tokenizer, or no token seen yet.
            CacheFullError, NumericError, ClosedError: as ``forward``.
        """
        generation = self.stream(max_tokens, stop=stop, ignore_eos=ignore_eos, **options)
        return (piece.text for piece in generation if piece.text)

    def stream(
        self,
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        **options: Any,
    ) -> Generation:
        """As ``generate``, token by token: ids, log-probabilities, the reason of the end."""
        _ = self.slot
        return Generation(self, max_tokens, stop, ignore_eos, self._options(options))

    def _options(self, options: dict[str, Any]) -> SamplingOptions:
        try:
            checked = SamplingOptions(**options)
        except TypeError as error:
            raise InvalidArgumentError(f"sampling: {error}") from error
        if checked.order == "rwkv" and "exempt" not in options:
            return replace(checked, exempt=self._model.exempt_tokens)
        return checked

    def sampler(self, options: SamplingOptions) -> "Sampler":
        """The session's sampler, set to `options`; a seed restarts its generator."""
        if self._sampler is None:
            self._sampler = self._model.new_sampler(options)
        else:
            self._sampler.set_options(options)
            if options.seed is not None:
                self._sampler.set_generator(options.seed)
        return self._sampler

    def accept(self, token: int) -> None:
        """Take a sampled token as the pending one: the next step runs it."""
        if self._pending is not None:
            raise InvalidArgumentError("a token is pending already: run it first")
        if not 0 <= token < self._model.backend.n_vocab:
            raise InvalidArgumentError(f"token {token} is not in the vocabulary")
        self._pending = token

    # ---- the state as an object

    def state(self) -> dict[str, NDArray[Any]]:
        """A copy of the state after all tokens that have been run.

        Returns:
            ``rwkv.N.att_x_prev`` [D], ``rwkv.N.wkv`` [H, value, key], ``rwkv.N.ffn_x_prev`` [D],
            ``attn.N.k_cache`` and ``attn.N.v_cache`` [T, D] in ascending position,
            ``attn.N.ffn_x_prev`` [D]. float32, KV in its own type.

        Raises:
            NumericError: a numeric error has spoilt the state.
            ClosedError: the session is closed.
        """
        state = self._model.backend.export_state(self.slot)
        del state["x_last"]
        return state

    def reset(self) -> None:
        """Forget every token; the sampler's counts and generator too.

        A session goes back to the initial state that it was born with, if there was one; one that
        was resumed forgets that as well.
        """
        self._model.backend.reset(self.slot)
        self._tokens = array("I")
        self._pending = None
        self._running = None
        self._sampler = None
        self._parent = self._lineage = ""
        self._begin()

    def fork(self) -> "Session":
        """Another session in the same state, which from here on goes its own way.

        Raises:
            NoSlotError: every slot is in use.
            NumericError: a numeric error has spoilt the state.
            ClosedError: the session is closed.
        """
        slot = self.slot
        twin = Session(self._model)
        try:
            self._model.backend.copy(slot, twin.slot)
        except BaseException:
            twin.close()
            raise
        twin._init_state = self._init_state
        twin._tokens = self._tokens[:]
        twin._pending = self._pending
        if self._sampler is not None:
            twin._sampler = self._model.new_sampler(SamplingOptions())
            twin._sampler.import_state(self._sampler.export_state())
        twin._parent, twin._lineage = self._parent, self._lineage
        return twin

    def snapshot(self) -> Snapshot:
        """The state as an immutable value, which ``Model.resume`` continues bit for bit.

        The first one of a model may have to read the whole checkpoint once, for its fingerprint.

        Raises:
            NumericError: a numeric error has spoilt the state.
            FileError: the checkpoint is not there any more, or has changed.
            ClosedError: the session is closed.
        """
        state = self._model.backend.export_state(self.slot)
        return Snapshot.make(
            self._model.identity,
            np.array(self._tokens, dtype=np.uint32),
            self._pending,
            state,
            b"" if self._sampler is None else self._sampler.export_state(),
            self._parent,
            self._lineage,
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a snapshot to a file; see ``Snapshot.save``."""
        self.snapshot().save(path, overwrite=overwrite)

    def restore(self, snapshot: Snapshot, *, is_foreign: bool) -> None:
        """Take over a snapshot's state; on any error the session is as it was.

        Args:
            snapshot: of the same model, policy and KV type.
            is_foreign: it came from a file, so this process did not compute it.

        Raises:
            StateMismatchError: another model's state, or one that contradicts itself.
            FormatError: a broken sampler state.
        """
        self._model.identity_for(is_foreign=is_foreign).require(snapshot.identity)
        n_vocab = self._model.backend.n_vocab
        ids = snapshot.tokens.tolist() + [t for t in (snapshot.pending,) if t is not None]
        if max(ids, default=0) >= n_vocab:
            raise StateMismatchError(f"the state has a token beyond the vocabulary of {n_vocab}")
        sampler = None
        if snapshot.sampler:
            sampler = self._model.new_sampler(SamplingOptions())
            sampler.import_state(snapshot.sampler)
        self._model.backend.import_state(self.slot, len(snapshot.tokens), snapshot.state)
        self._tokens = array("I", snapshot.tokens.tolist())
        self._pending = snapshot.pending
        self._sampler = sampler
        self._parent = snapshot.id
        self._lineage = snapshot.lineage or (snapshot.id if is_foreign else "")


def _check_out(out: NDArray[np.float32], n: int) -> None:
    """Refuse an array that the engine would refuse, before anything runs."""
    if not (
        isinstance(out, np.ndarray)
        and out.dtype == np.float32
        and out.flags.carray
        and out.size == n
    ):
        raise InvalidArgumentError(
            f"out must be a contiguous, writeable float32 array of {n} elements"
        )
