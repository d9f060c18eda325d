"""What every device must offer: slots, and one forward over ragged rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

#: What a row gives back: nothing, the logits of its last token, or those of every token.
Logits = Literal["none", "last", "all"]

#: Token ids; a contiguous uint32 array is used in place.
Tokens = Sequence[int] | NDArray[np.integer[Any]]

#: A slot's state: name -> float32 or float16 array, as in ``Session.state``.
State = Mapping[str, NDArray[Any]]


class Backend(Protocol):
    """A model with slots on one device. Methods may be called from any thread; they take turns."""

    @property
    def n_vocab(self) -> int:
        """V."""

    def info(self) -> dict[str, Any]:
        """Slots, threads, instruction set, and counters of forwards, tokens and their time."""

    def forward(
        self,
        rows: Sequence[tuple[int, Tokens]],
        logits: Logits,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Run (slot, tokens) rows; return float32 [logits rows, V], `out` itself if given."""

    def slot_logits(self, slot: int) -> NDArray[np.float32]:
        """Logits at the slot's last position again, float32 [V], with the same bits."""

    def acquire(self) -> int:
        """A slot with an empty state. Raises NoSlotError when all are in use."""

    def release(self, slot: int) -> None:
        """Give a slot back."""

    def abandon(self, slot: int) -> None:
        """Give a slot back at the next turn, without waiting; for finalizers."""

    def reset(self, slot: int) -> None:
        """Empty a slot's state."""

    def copy(self, source: int, target: int) -> None:
        """Copy one slot's state over another's."""

    def n_tokens(self, slot: int) -> int:
        """Tokens that the slot's state has seen."""

    def is_spoilt(self, slot: int) -> bool:
        """Whether a numeric error has spoilt the slot's state."""

    def export_state(self, slot: int) -> dict[str, NDArray[Any]]:
        """A copy of the slot's state."""

    def import_state(self, slot: int, n_tokens: int, state: State) -> None:
        """Replace the slot's state. Raises StateMismatchError and changes nothing if it cannot."""
