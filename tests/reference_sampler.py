"""Sampling in NumPy, written for reading: the truth that the native sampler is held to.

It sorts, loops and allocates as it likes. Given the same exponential function, float32 in and out,
it draws the same tokens as the native sampler; docs/sampling.md is the definition of both.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from wkvm.hypervisor.sampling import SamplingOptions

F32 = NDArray[np.float32]

MASK32 = 0xFFFFFFFF


def philox4x32_10(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Ten rounds of Philox on four 32-bit words of counter and two of key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def uniform(seed: int, index: int) -> np.float32:
    """Number `index` of the stream `seed`, in [0, 1)."""
    words = philox4x32_10((index & MASK32, index >> 32, 0, 0), (seed & MASK32, seed >> 32))
    return np.float32((words[0] >> 8) / 2**24)


def exp_rounded(x: F32) -> F32:
    """The exponential of float32 numbers, correct to half a unit in the last place."""
    return np.exp(x.astype(np.float64)).astype(np.float32)


class ReferenceSampler:
    def __init__(
        self, options: SamplingOptions, seed: int, exp: Callable[[F32], F32] = exp_rounded
    ) -> None:
        self.options = options
        self.seed = seed
        self.index = 0
        self.counts: dict[int, float] = {}
        self.exp = exp

    def accept(self, token: int) -> None:
        o = self.options
        for counted in self.counts:
            self.counts[counted] *= o.penalty_decay
        self.counts[token] = self.counts.get(token, 0.0) + (0.0 if token in o.exempt else 1.0)
        self.index += 1

    def adjusted(self, logits: F32) -> F32:
        """Logits [V] after penalties, biases and bans."""
        o = self.options
        x = logits.copy()
        for token, count in self.counts.items():
            logit = float(x[token])
            logit = logit / o.repetition_penalty if logit > 0 else logit * o.repetition_penalty
            x[token] = np.float32(logit - (o.presence_penalty + count * o.frequency_penalty))
        for token, bias in o.logit_bias.items():
            x[token] = np.float32(float(x[token]) + bias)
        x[list(o.banned)] = -np.inf
        return x

    def candidates(self, logits: F32) -> tuple[list[int], F32]:
        """What is kept, ids ascending, and its weights relative to the largest."""
        o = self.options
        x = self.adjusted(logits)
        top = x.max()
        if o.temperature == 0:
            return [int(np.argmax(x))], np.ones(1, np.float32)

        def weight(ids: list[int], temperature: float) -> F32:
            below = (x[ids] - top).astype(np.float64)
            return self.exp((below / temperature).astype(np.float32))

        # The most probable first, equal ones in order of their ids.
        kept = sorted((i for i in range(len(x)) if x[i] > -np.inf), key=lambda i: (-x[i], i))
        judged = weight(kept, 1.0 if o.order == "rwkv" else o.temperature)
        if o.top_p < 1:
            mass = [math.floor(Fraction(float(w)) * 2**38) for w in judged]
            target = max(1, math.ceil(o.top_p * float(sum(mass))))
            reached = np.cumsum(np.array(mass, dtype=object))
            last = next(i for i, total in enumerate(reached) if total >= min(target, reached[-1]))
            judged = judged[x[kept] >= x[kept[last]]]
            kept = kept[: len(judged)]
        if o.min_p > 0:
            kept = [i for i, w in zip(kept, judged, strict=True) if float(w) >= o.min_p]
        if o.top_k > 0:
            kept = kept[: o.top_k]
        kept = sorted(kept)
        return kept, weight(kept, o.temperature)

    def probabilities(self, logits: F32) -> tuple[list[int], F32]:
        kept, weights = self.candidates(logits)
        return kept, weights / running_sums(weights)[-1]

    def sample(self, logits: F32) -> int:
        """The first candidate whose running sum exceeds u times the sum of all."""
        kept, weights = self.candidates(logits)
        if self.options.temperature == 0:
            return kept[0]
        sums = running_sums(weights)
        target = uniform(self.seed, self.index) * sums[-1]
        return next(token for token, s in zip(kept, sums, strict=True) if s > target)


def running_sums(weights: F32) -> F32:
    """Sums of the first 1, 2, ... weights, each addition rounded to float32."""
    sums = np.empty_like(weights)
    total = np.float32(0)
    for i, w in enumerate(weights):
        total = np.float32(total + w)
        sums[i] = total
    return sums


def logprobs(logits: F32) -> NDArray[np.float64]:
    """Log-softmax [V] in float64."""
    x = logits.astype(np.float64) - logits.max()
    with np.errstate(divide="ignore"):
        return x - np.log(np.exp(x).sum())
