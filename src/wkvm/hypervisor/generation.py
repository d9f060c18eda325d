"""Generating text: sample a token, hand out its text, run it, and again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wkvm.errors import InvalidArgumentError
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.text.stream import TextStream

if TYPE_CHECKING:
    from wkvm.hypervisor.session import Session

END_OF_TEXT = 0  # the World vocabulary's token that ends a document


@dataclass(frozen=True)
class Piece:
    """One step of a generation.

    Attributes:
        text: whole characters that this step completed; may be empty.
        token: the sampled token; None for text that only the end released.
        logprob: the token's log-probability under the model, if it was asked for.
        top_logprobs: token -> log-probability of the most probable ones, likewise.
    """

    text: str
    token: int | None = None
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


class Generation:
    """Iterates over the pieces of one generation. Stopping early leaves a usable session.

    Attributes:
        reason: why it ended: ``"length"``, ``"stop"`` (a stop string), ``"eos"`` (token 0), or
            None while it has not.
        stop: the stop string that ended it.
        n_tokens: tokens sampled so far, without the one that ended the text.
    """

    def __init__(
        self,
        session: "Session",
        max_tokens: int | None,
        stop: Sequence[str],
        ignore_eos: bool,
        options: SamplingOptions,
    ) -> None:
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 0):
            raise InvalidArgumentError(
                f"max_tokens is {max_tokens!r}; it must be a whole number, not negative"
            )
        self._session = session
        self._tokenizer = session.model.tokenizer
        self._max_tokens = max_tokens
        self._ignore_eos = ignore_eos
        self._options = options
        self._stream = TextStream(stop)
        self._steps = self._run()
        self.reason: Literal["length", "stop", "eos"] | None = None
        self.n_tokens = 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended the generation."""
        return self._stream.matched

    def __iter__(self) -> Iterator[Piece]:
        """The generation itself."""
        return self._steps

    def _run(self) -> Iterator[Piece]:
        session = self._session
        session.n_generations += 1
        number = session.n_generations
        sampler = session.sampler(self._options)
        n_top = self._options.logprobs
        while self._max_tokens is None or self.n_tokens < self._max_tokens:
            if session.n_generations != number:
                raise InvalidArgumentError("another generation has begun on this session")
            logits = session.logits()
            token = sampler.sample(logits)
            if token == END_OF_TEXT and not self._ignore_eos:
                self.reason = "eos"
                break
            logprob, top = None, None
            if n_top is not None:
                logprob, ids, values = sampler.logprobs(logits, token, n_top)
                top = dict(zip(ids.tolist(), values.tolist(), strict=True))
            sampler.accept(token)
            session.accept(token)
            self.n_tokens += 1
            text = self._stream.push(self._bytes_of(token))
            yield Piece(text, token, logprob, top)
            if self._stream.matched is not None:
                self.reason = "stop"
                return
        else:
            self.reason = "length"
        tail = self._stream.flush()
        if self._stream.matched is not None:
            self.reason = "stop"
        if tail:
            yield Piece(tail)

    def _bytes_of(self, token: int) -> bytes:
        """The token's bytes; none for an id beyond the vocabulary, which a head may have."""
        if token >= self._tokenizer.vocab_size:
            return b""
        return self._tokenizer.token_bytes(token)
