"""The attention policy as a user names it: its options and their defaults."""

from collections.abc import Mapping
from typing import Any

from wkvm._engine import POLICIES
from wkvm.errors import InvalidArgumentError
from wkvm.formats.load import merge_options

#: policy -> its options and their defaults; DESIGN section 4.
OPTIONS: dict[str, dict[str, int | float]] = {
    "full": {},
    "moba": {"moba_chunk_size": 2048, "moba_topk": 3},
    "window": {"window_sinks": 4, "window_size": 2048},
    "memory": {"memory_keep_tokens": 128, "memory_keep_ratio": 0.0},
}


def resolve(
    policy: str, given: Mapping[str, Any], from_file: Mapping[str, int | float]
) -> dict[str, int | float]:
    """The options of `policy`: those given, else those of the file, else the defaults.

    Args:
        policy: one of ``OPTIONS``.
        given: options by name, as the caller wrote them.
        from_file: options that the model's file recommends.

    Raises:
        InvalidArgumentError: an unknown policy, or an option that is unknown, of another policy,
            or not a number.
    """
    if policy not in OPTIONS:
        raise InvalidArgumentError(f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
    allowed = OPTIONS[policy]
    for name, value in given.items():
        if name not in allowed:
            owners = [other for other, options in OPTIONS.items() if name in options]
            what = f"belongs to policy {owners[0]!r}" if owners else "is not an option"
            raise InvalidArgumentError(
                f"{name} {what}; policy {policy!r} takes {', '.join(allowed) or 'no options'}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a number")
        if isinstance(allowed[name], int) and not isinstance(value, int):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a whole number")
    options = merge_options(from_file, given)
    return {name: options.get(name, default) for name, default in allowed.items()}
