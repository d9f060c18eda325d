"""The CPU: the native engine is a backend as it is."""

from typing import Any

from wkvm._engine import Engine, Model
from wkvm.backends.base import Backend
from wkvm.errors import InvalidArgumentError

DEFAULT_CACHE_LEN = 65536


def open_backend(
    model: Model,
    *,
    n_slots: int,
    threads: int | None,
    kv_dtype: str,
    policy: str,
    max_cache_len: int | None,
    **policy_options: Any,
) -> Backend:
    """Slots and threads for a native model.

    Args:
        model: packed weights.
        n_slots: sessions that may be open at once.
        threads: of one forward; None: the physical cores that this process may use.
        kv_dtype: ``"fp16"`` or ``"fp32"``.
        policy: of attention.
        max_cache_len: tokens that one session's KV cache may hold; None: 65,536.
        policy_options: of `policy`; see ``hypervisor.policy``.

    Raises:
        InvalidArgumentError: an option out of range.
        UnsupportedError: ``$WKVM_ISA`` names a set that this machine or build lacks.
        OutOfMemoryError: the slots do not fit the address space.
    """
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise InvalidArgumentError(f"threads is {threads!r}; it must be a whole number from 1")
    return Engine(
        model,
        n_slots=n_slots,
        threads=0 if threads is None else threads,
        kv_dtype=kv_dtype,
        policy=policy,
        max_cache_len=DEFAULT_CACHE_LEN if max_cache_len is None else max_cache_len,
        **policy_options,
    )
