"""``wkvm convert``: pack a checkpoint once, so that it opens at once, or respell it for others."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from wkvm._engine import Model
from wkvm.cli.dtypes import Dtype
from wkvm.cli.info import note_left_over
from wkvm.cli.tuning import AdapterAlpha, AdapterInit, AdapterPath, chosen_adapter
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.export import Spelling, export_checkpoint


def convert(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="A checkpoint of any kind, or its folder."),
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The .safetensors file to make; for fla, the folder."),
    ],
    *,
    to: Annotated[
        Literal["wkvm", Spelling],
        typer.Option(
            help="wkvm: packed, to be mapped; blinkdl, fla: in their names, every tensor as stored."
        ),
    ] = "wkvm",
    dtype: Annotated[
        Dtype, typer.Option(help="Type of the big matrices; auto: as stored.")
    ] = "auto",
    moba_chunk_size: Annotated[
        int | None,
        typer.Option(min=1, max=2**31 - 1, help="Record this block size for the moba policy."),
    ] = None,
    moba_topk: Annotated[
        int | None,
        typer.Option(min=1, max=2**31 - 1, help="Record this number of blocks for it."),
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option(help="Put this vocabulary file into OUT; else what IN holds.")
    ] = None,
    adapter: AdapterPath = None,
    adapter_alpha: AdapterAlpha = None,
    adapter_init: AdapterInit = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Pack a checkpoint to be mapped and used in place, or write it for other programs."""
    if to != "wkvm" and dtype != "auto":
        raise typer.BadParameter("the others keep the types as stored.", param_hint="--dtype")
    tuned = chosen_adapter(adapter, adapter_alpha, adapter_init)
    given = {"moba_chunk_size": moba_chunk_size, "moba_topk": moba_topk}
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        stages = ("packing", "writing") if to == "wkvm" else ("writing",)
        tasks = {stage: progress.add_task(stage, start=False) for stage in stages}

        def show(stage: str, done: int, total: int) -> None:
            progress.start_task(tasks[stage])
            progress.update(tasks[stage], completed=done, total=total)

        policy = {key: value for key, value in given.items() if value is not None}
        common: dict[str, Any] = {
            "policy": policy,
            "vocab": vocab,
            "adapter": tuned,
            "overwrite": force,
            "progress": show,
        }
        if to == "wkvm":
            convert_checkpoint(source, target, dtype=dtype, **common)
        else:
            export_checkpoint(source, target, to, **common)
    if to == "wkvm":
        note_left_over(Model.open(target).info()["n_unused"])
