"""What commands that load a model and generate share: bars, Ctrl-C, options that were given."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

#: Called with (what is being done, units done, units in all).
Show = Callable[[str, int, int], None]


def given(**options: Any) -> dict[str, Any]:
    """Those that were given; what the others default to is said where they are used."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def progress() -> Iterator[Show]:
    """Gives a function that moves bars on standard error, if that is a terminal."""
    tasks: dict[str, TaskID] = {}
    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bars:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield show


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `stop`; the second one interrupts as usual."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(signal.SIGINT, before)

    if before is not signal.SIG_IGN:  # a shell's background job
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
