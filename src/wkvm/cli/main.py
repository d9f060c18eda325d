"""The program ``wkvm``: its commands, and how their errors reach a person."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wkvm._version import version
from wkvm.errors import FileError, WkvmError

#: Command -> its line in the help. NAME is the function NAME of the module wkvm.cli.NAME.
COMMANDS = {
    "generate": "Continue a prompt, and print the text as it comes.",
    "pull": "Fetch a checkpoint from the Hugging Face hub, and print where it lies.",
    "chat": "Talk to a model, in the terminal or over a pipe.",
    "convert": "Pack a checkpoint to be mapped and used in place, or write it for other programs.",
    "info": "Print family, shapes, order of blocks, and the bytes that a token and a session take.",
    "tokenize": "Print the token ids of a text, or with --decode the text of token ids.",
    "doctor": "Print what this machine offers, and check that it computes what it should.",
}


class Commands(TyperGroup):
    """Imports a command when it is called, so that no other command costs it time."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"wkvm.cli.{cmd_name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Their table in the help, for which none is imported."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=Commands, add_completion=False, rich_markup_mode=None, invoke_without_command=True
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"wkvm {version}")
        raise typer.Exit


@app.callback()
def wkvm(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run RWKV-7 and RWKV-X language models. wkvm COMMAND --help describes a command."""
    if sys.stdout is None:
        raise FileError("standard output is closed")
    context.call_on_close(sys.stdout.flush)  # its errors must show while they can be handled
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line that the process was started with, and exit."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    """The exit status: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        command = typer.main.get_command(app)
        return command.main(arguments, prog_name="wkvm", standalone_mode=False) or 0
    except typer.TyperException as error:
        asked = [name for name in arguments[:1] if name in COMMANDS]
        help_command = " ".join(["wkvm", *asked, "--help"])
        message, status = f"{error.format_message()} See: {help_command}", error.exit_code
    except WkvmError as error:
        message, status = str(error), 1
    except MemoryError:
        message, status = "out of memory: close other programs, or run a smaller model", 1
    except OSError as error:
        message, status = str(error), 1
        if error.filename is None:  # no file's, so of writing standard output: a full disk, say
            message = f"cannot write the output: {error.strerror}"
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # exit flushes quietly
    print("error:", " ".join(message.split()), file=sys.stderr)
    return status
