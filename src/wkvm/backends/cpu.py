"""The CPU: the native engine, one caller at a time."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wkvm._engine import LOGITS, Engine
from wkvm.backends.base import Logits, State, Tokens
from wkvm.errors import InvalidArgumentError


class CpuBackend:
    """Turns on one native engine; implements ``backends.base.Backend``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = RLock()
        self._abandoned: deque[int] = deque()
        self.n_vocab: int = engine.n_vocab

    @contextmanager
    def _turns(self) -> Iterator[Engine]:
        with self._turn:
            while self._abandoned:
                self._engine.release(self._abandoned.popleft())
            yield self._engine

    def info(self) -> dict[str, Any]:
        """What ``wkvm_engine_info`` says."""
        with self._turns() as engine:
            return engine.info()

    def forward(
        self,
        rows: Sequence[tuple[int, Tokens]],
        logits: Logits,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Run (slot, tokens) rows; see the protocol."""
        if logits not in LOGITS:
            raise InvalidArgumentError(
                f"logits is {logits!r}; it must be one of {', '.join(LOGITS)}"
            )
        with self._turns() as engine:
            return engine.forward(rows, LOGITS.index(logits), out)

    def slot_logits(self, slot: int) -> NDArray[np.float32]:
        """Logits at the slot's last position again."""
        with self._turns() as engine:
            return engine.slot_logits(slot)

    def acquire(self) -> int:
        """A slot with an empty state."""
        with self._turns() as engine:
            return engine.acquire()

    def release(self, slot: int) -> None:
        """Give a slot back."""
        with self._turns() as engine:
            engine.release(slot)

    def abandon(self, slot: int) -> None:
        """Give a slot back at the next turn."""
        self._abandoned.append(slot)

    def reset(self, slot: int) -> None:
        """Empty a slot's state."""
        with self._turns() as engine:
            engine.reset(slot)

    def copy(self, source: int, target: int) -> None:
        """Copy one slot's state over another's."""
        with self._turns() as engine:
            engine.copy(source, target)

    def n_tokens(self, slot: int) -> int:
        """Tokens that the slot's state has seen."""
        with self._turns() as engine:
            return engine.n_tokens(slot)

    def is_spoilt(self, slot: int) -> bool:
        """Whether a numeric error has spoilt the slot's state."""
        with self._turns() as engine:
            return engine.is_spoilt(slot)

    def export_state(self, slot: int) -> dict[str, NDArray[Any]]:
        """A copy of the slot's state."""
        with self._turns() as engine:
            return engine.export_state(slot)

    def import_state(self, slot: int, n_tokens: int, state: State) -> None:
        """Replace the slot's state."""
        with self._turns() as engine:
            engine.import_state(slot, n_tokens, state)
