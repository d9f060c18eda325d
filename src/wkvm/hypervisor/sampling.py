"""What a caller may ask of sampling: the options, their ranges and presets. docs/sampling.md."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from typing import Any, Protocol, Self

from wkvm._engine import SAMPLING_ORDERS
from wkvm.errors import InvalidArgumentError

#: Option -> its smallest and largest value.
_RANGES = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-1000.0, 1000.0),
    "frequency_penalty": (-1000.0, 1000.0),
    "repetition_penalty": (0.01, 100.0),
    "penalty_decay": (0.0, 1.0),
}
_BIAS_RANGE = (-1000.0, 1000.0)
_N_TOKENS = 1 << 24  # no vocabulary is larger

_EXEMPT_TEXT = b" \t0123456789"


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen. The defaults are those of the official RWKV package.

    Attributes:
        order: what the cuts (`top_p`, `top_k`, `min_p`) are judged on: "rwkv", the distribution
            at temperature 1, whose kept part the temperature then reshapes; "openai", the
            distribution at `temperature`.
        temperature: finite, at least 0; 0 is greedy, the lowest id among the largest logits.
        top_p: 0 to 1. Keeps every token at least as probable as the one at which the sum of the
            probabilities, the largest first, reaches `top_p`. 1 keeps everything.
        top_k: keeps the `top_k` most probable tokens, equal ones in order of their ids; 0: off.
        min_p: 0 to 1. Keeps tokens of at least `min_p` times the largest probability; 0: off.
        presence_penalty: -1000 to 1000, subtracted from the logit of every generated token.
        frequency_penalty: -1000 to 1000, subtracted as often as the token's count says.
        repetition_penalty: 0.01 to 100. The logit of every generated token is divided by it if
            positive, multiplied by it if not; 1: off.
        penalty_decay: 0 to 1, what one step leaves of every count.
        logit_bias: token id -> -1000 to 1000, added to its logit.
        banned: token ids that are never generated.
        exempt: token ids whose generation adds 0 to their count instead of 1; `exempt_tokens`.
        seed: 0 to 2**64 - 1 restarts the generator; None goes on with its state.
        logprobs: how many of the largest log-probabilities to report beside the chosen token's;
            None: no log-probabilities at all.

    Raises:
        InvalidArgumentError: a value outside its range; the message names the option, the value
            and the range.
    """

    order: str = "rwkv"
    temperature: float = 1.0
    top_p: float = 0.85
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.2
    frequency_penalty: float = 0.2
    repetition_penalty: float = 1.0
    penalty_decay: float = 0.996
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Iterable[int] = ()
    exempt: Iterable[int] = ()
    seed: int | None = None
    logprobs: int | None = None

    @classmethod
    def openai(cls, **changes: Any) -> Self:
        """The defaults of the OpenAI interface: its order, no cut, no penalties."""
        plain: dict[str, Any] = {
            "order": "openai",
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "penalty_decay": 1.0,
        }
        return cls(**(plain | changes))

    @classmethod
    def greedy(cls, **changes: Any) -> Self:
        """The largest logit every time, without penalties."""
        return cls.openai(**({"temperature": 0.0} | changes))

    def __post_init__(self) -> None:
        """Check every field, and bring it to one form: floats, ints, sorted tuples."""
        if self.order not in SAMPLING_ORDERS:
            raise InvalidArgumentError(
                f"order is {self.order!r}; it must be one of {', '.join(SAMPLING_ORDERS)}"
            )
        for name, (low, high) in _RANGES.items():
            self._set(name, _number(name, getattr(self, name), low, high))
        self._set("top_k", _integer("top_k", self.top_k, 1 << 64))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidArgumentError(
                f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers"
            )
        biases = {
            _integer("a token of logit_bias", token, _N_TOKENS): _number(
                f"logit_bias of token {token}", bias, *_BIAS_RANGE
            )
            for token, bias in self.logit_bias.items()
        }
        self._set("logit_bias", dict(sorted(biases.items())))
        for name in ("banned", "exempt"):
            given = getattr(self, name)
            if not isinstance(given, Iterable):
                raise InvalidArgumentError(f"{name} is {given!r}; it must be a list of token ids")
            tokens = {_integer(f"a token of {name}", token, _N_TOKENS) for token in given}
            self._set(name, tuple(sorted(tokens)))
        if self.seed is not None:
            self._set("seed", _integer("seed", self.seed, 1 << 64))
        if self.logprobs is not None:
            self._set("logprobs", _integer("logprobs", self.logprobs, _N_TOKENS))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _number(name: str, value: Any, low: float, high: float) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and low <= number <= high:
        return number
    allowed = f"from {low:g} to {high:g}" if high < math.inf else f"finite and at least {low:g}"
    raise InvalidArgumentError(f"{name} is {value!r}; it must be a number {allowed}")


def _integer(name: str, value: Any, limit: int) -> int:
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not 0 <= number < limit:
        raise InvalidArgumentError(
            f"{name} is {value!r}; it must be an integer from 0 to {limit - 1}"
        )
    return number


class TokenTable(Protocol):
    """What `exempt_tokens` asks of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """V: ids are 0 to V - 1."""

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes of one token; none for an id that the vocabulary leaves undefined."""


def exempt_tokens(tokenizer: TokenTable) -> tuple[int, ...]:
    """The tokens that RWKV does not count: those whose text is a part of " \\t0123456789"."""
    texts = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return tuple(token for token, text in texts if text and text in _EXEMPT_TEXT)
