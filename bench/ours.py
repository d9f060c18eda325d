"""wkvm with one loaded model: the counterpart of peer.Peer, with the same three requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import wkvm


class Ours:
    """A model, one session of it, and a buffer for its logits."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = wkvm.load(path, threads=threads, n_slots=1)
        self.session = self.model.session()
        self.out = np.empty(self.model.info["n_vocab"], np.float32)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """float32 [V] after the last of `tokens`, from an empty state."""
        self.session.reset()
        self.session.forward(tokens, out=self.out)
        return self.out.copy()

    def prefill(self, tokens: Sequence[int]) -> float:
        """Seconds for one call with all tokens."""
        self.session.reset()
        start = time.perf_counter()
        self.session.forward(tokens, out=self.out)
        return time.perf_counter() - start

    def decode(self, tokens: Sequence[int]) -> float:
        """Seconds for the tokens one by one, logits after each."""
        self.session.reset()
        start = time.perf_counter()
        for token in tokens:
            self.session.forward([token], out=self.out)
        return time.perf_counter() - start
