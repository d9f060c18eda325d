"""``wkvm pull``: fetch a checkpoint from the Hugging Face hub, and print where it lies."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from wkvm.errors import FormatError, InvalidArgumentError

if TYPE_CHECKING:
    from wkvm.hub import Repository


def pull(
    source: Annotated[
        str,
        typer.Argument(
            metavar="REPO[:FILE]",
            help="A repository, as OWNER/NAME, and a file in it; else its only checkpoint.",
        ),
    ],
    *,
    revision: Annotated[str, typer.Option(help="A branch, a tag or a commit.")] = "main",
) -> None:
    """Fetch a checkpoint from the Hugging Face hub, and print where it lies."""
    from wkvm.hub import open_repository  # noqa: PLC0415 -- an extra, and half a second

    name, _, file = source.partition(":")
    repository = open_repository(name, revision)
    if repository.offline is not None:
        print(f"note: {repository.offline}; using what is cached", file=sys.stderr)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    file = file or _only_checkpoint(repository)
    with Progress(
        *columns, console=Console(stderr=True), disable=not sys.stderr.isatty()
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, completed=done)
            progress.update(tasks[what], completed=done, total=total)

        try:
            path = repository.fetch(file, show)
        except KeyboardInterrupt:
            print("note: what has arrived is kept: pull again to go on", file=sys.stderr)
            raise
    print(path)


def _only_checkpoint(repository: "Repository") -> str:
    """Its name; of several, a list on standard error and an error."""
    found = repository.checkpoints()
    if not found:
        raise FormatError(
            f"{repository.name} holds no checkpoint: no .pth, .safetensors, .gguf or .st file"
        )
    if len(found) > 1:
        for file in found:
            print(f"{decimal(file.size):>10}  {file.name}", file=sys.stderr)
        raise InvalidArgumentError(
            f"{repository.name} holds {len(found)} checkpoints: name one, as in wkvm pull "
            f"{repository.name}:{found[0].name}"
        )
    return found[0].name
