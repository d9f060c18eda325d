"""Options that name what tuning made of a model: an adapter, an initial state."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from wkvm.formats.adapter import Adapter
from wkvm.formats.init_state import InitState, Layout

AdapterPath = Annotated[
    Path | None,
    typer.Option(
        "--adapter", help="Merge this LoRA or PiSSA adapter in: PEFT's folder, or RWKV-PEFT's .pth."
    ),
]
AdapterAlpha = Annotated[
    float | None,
    typer.Option("--adapter-alpha", help="The alpha that a LoRA .pth was trained with."),
]
AdapterInit = Annotated[
    Path | None,
    typer.Option("--adapter-init", help="What PiSSA began with, for example init_pissa.pth."),
]
StatePath = Annotated[
    Path | None,
    typer.Option("--state", help="Begin with this tuned state: .pth or .safetensors."),
]
StateLayout = Annotated[
    Literal["auto", Layout],
    typer.Option(
        "--state-layout", help="Sides of its matrices; auto: by the kind of file (docs/tuning.md)."
    ),
]


def chosen_adapter(path: Path | None, alpha: float | None, init: Path | None) -> Adapter | None:
    """The adapter that the options name.

    Raises:
        typer.BadParameter: they describe one and do not name it.
        InvalidArgumentError: an alpha that is none.
    """
    if path is not None:
        return Adapter(path, alpha, init)
    for name, value in (("--adapter-alpha", alpha), ("--adapter-init", init)):
        if value is not None:
            raise typer.BadParameter("name the adapter with --adapter.", param_hint=name)
    return None


def chosen_state(path: Path | None, layout: Literal["auto", Layout]) -> InitState | None:
    """The initial state that the options name; says on standard error how it was read.

    Raises:
        typer.BadParameter: a layout of no state.
        FileError, FormatError: as ``InitState.load``.
    """
    if path is None:
        if layout != "auto":
            raise typer.BadParameter("name the state with --state.", param_hint="--state-layout")
        return None
    state = InitState.load(path, layout)
    if layout == "auto":
        print(f"note: read {path} as --state-layout {state.layout}", file=sys.stderr)
    return state
