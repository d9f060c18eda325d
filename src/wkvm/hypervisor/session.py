"""A session: the tokens it has seen, the slot that holds its state, and its sampler."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from wkvm.backends.base import Logits, Tokens
from wkvm.errors import ClosedError, InvalidArgumentError, NumericError, StateMismatchError
from wkvm.hypervisor.generation import Generation
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.hypervisor.snapshot import Snapshot

if TYPE_CHECKING:
    from wkvm._engine import Sampler
    from wkvm.hypervisor.model import Model


class Session:
    """One conversation with a model; made by ``Model.session``, ``Model.resume`` and ``fork``.

    It holds one of the model's slots until it is closed, leaves its ``with`` block, or is garbage.
    One thread at a time may use a session; sessions of one model in several threads take turns.
    """

    def __init__(self, model: "Model") -> None:
        self._slot: int | None = None
        self._model = model
        self._slot = model.backend.acquire()
        self._tokens = array("I")
        self._pending: int | None = None
        self._sampler: Sampler | None = None
        self._parent = ""
        self._lineage = ""

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
            self._model.backend.abandon(self._slot)

    def close(self) -> None:
        """Give the slot back. Closing twice is harmless; any other use raises ClosedError."""
        if self._slot is not None:
            self._model.backend.release(self._slot)
            self._slot = None

    @property
    def slot(self) -> int:
        """The slot that holds the state. Raises ClosedError after ``close``."""
        if self._slot is None:
            raise ClosedError("the session is closed: open another, or resume a snapshot")
        return self._slot

    @property
    def model(self) -> "Model":
        """The model that the session runs on."""
        return self._model

    @property
    def tokens(self) -> list[int]:
        """The tokens of the conversation, in order; a copy. The last may still be ``pending``."""
        return self._tokens.tolist() + ([] if self._pending is None else [self._pending])

    @property
    def pending(self) -> int | None:
        """The token that was sampled and not yet run; whatever is run next is run after it."""
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
        slot = self.slot
        backend = self._model.backend
        run = self.with_pending(tokens)
        if logits == "all" and self._pending is not None:
            if out is not None:
                _check_out(out, len(tokens) * backend.n_vocab)
            result = backend.forward(((slot, run),), logits)[1:]
            if out is not None:
                out.reshape(result.shape)[...] = result
                result = out
        else:
            result = backend.forward(((slot, run),), logits, out)
        self.ran(run)
        if logits == "none":
            return None
        return result if out is not None or logits == "all" else result[0]

    def with_pending(self, tokens: Tokens) -> Tokens:
        """The tokens of a row that runs `tokens`: those, after the pending one if there is one.

        No tokens stay no tokens, which the engine refuses.
        """
        return tokens if self._pending is None or len(tokens) == 0 else [self._pending, *tokens]

    def ran(self, run: Tokens) -> None:
        """Note that the slot has run `run`, which began with the pending token if there was one."""
        self._tokens.extend(run)
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
        run = (self._pending,)
        result = self._model.backend.forward(((slot, run),), "last")
        self.ran(run)
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
        return Generation(self, max_tokens, tuple(stop), ignore_eos, self._options(options))

    def _options(self, options: dict[str, Any]) -> SamplingOptions:
        try:
            checked = SamplingOptions(**options)
        except TypeError as error:
            raise InvalidArgumentError(f"sampling: {error}") from error
        counts = checked.order == "rwkv" and checked.frequency_penalty != 0
        if counts and "exempt" not in options:
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
            ClosedError: the session is closed.
        """
        state = self._model.backend.export_state(self.slot)
        del state["x_last"]
        return state

    def reset(self) -> None:
        """Forget every token; the sampler's counts and generator too."""
        self._model.backend.reset(self.slot)
        self._tokens = array("I")
        self._pending = None
        self._sampler = None
        self._parent = self._lineage = ""

    def fork(self) -> "Session":
        """Another session in the same state, which from here on goes its own way.

        Raises:
            NoSlotError: every slot is in use.
            ClosedError: the session is closed.
        """
        slot = self.slot
        twin = Session(self._model)
        self._model.backend.copy(slot, twin.slot)
        twin._tokens = self._tokens[:]
        twin._pending = self._pending
        if self._sampler is not None:
            twin._sampler = self._model.new_sampler(SamplingOptions())
            twin._sampler.import_state(self._sampler.export_state())
        twin._parent, twin._lineage = self._parent, self._lineage
        return twin

    def snapshot(self) -> Snapshot:
        """The state as an immutable value, which ``Model.resume`` continues bit for bit.

        Raises:
            NumericError: a numeric error has spoilt the state.
            ClosedError: the session is closed.
        """
        if self._model.backend.is_spoilt(self.slot):
            raise NumericError("a numeric error has spoilt this state; reset the session")
        return Snapshot.make(
            self._model.identity,
            np.array(self._tokens, dtype=np.uint32),
            self._pending,
            self._model.backend.export_state(self.slot),
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
        self._model.identity.require(snapshot.identity)
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
    if not (out.dtype == np.float32 and out.flags.carray and out.size == n):
        raise InvalidArgumentError(
            f"out must be a contiguous, writeable float32 array of {n} elements"
        )
