"""``wkvm convert``: pack a checkpoint once, so that it opens at once."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from wkvm._engine import Model
from wkvm.cli.dtypes import Dtype
from wkvm.cli.info import note_left_over
from wkvm.formats.convert import convert_checkpoint


def convert(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="A .safetensors, shard index, .pth, or their folder."),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .safetensors file to make.")],
    *,
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
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Pack a checkpoint into a file that is mapped and used in place."""
    given = {"moba_chunk_size": moba_chunk_size, "moba_topk": moba_topk}
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {stage: progress.add_task(stage, start=False) for stage in ("packing", "writing")}

        def show(stage: str, done: int, total: int) -> None:
            progress.start_task(tasks[stage])
            progress.update(tasks[stage], completed=done, total=total)

        convert_checkpoint(
            source,
            target,
            dtype=dtype,
            policy={key: value for key, value in given.items() if value is not None},
            overwrite=force,
            progress=show,
        )
    note_left_over(Model.open(target).info()["n_unused"])
