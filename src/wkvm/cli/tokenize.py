"""``wkvm tokenize``: the tokens of a text, and back."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wkvm.cli.inputs import read_input
from wkvm.errors import InvalidArgumentError
from wkvm.formats.open import open_checkpoint
from wkvm.hypervisor.model import checkpoint_tokenizer
from wkvm.text.tokenizer import Tokenizer


def tokenize(
    text: Annotated[
        str | None, typer.Argument(help="The text; -, or nothing: standard input.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option(help="Read the text, as it is, from a file.")] = None,
    vocab: Annotated[
        str | None, typer.Option(help="A vocabulary file, 'world', or 'bytes'; else 'world'.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Use the vocabulary of this checkpoint.")
    ] = None,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Take ids, apart by spaces or commas, instead of text, and print their bytes.",
        ),
    ] = False,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Print one line per token: id and text.")
    ] = False,
    count: Annotated[bool, typer.Option("--count", help="Print how many tokens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the token ids of a text, or with --decode the text of token ids."""
    if pieces + count + as_json > 1:
        raise typer.BadParameter("give one of them.", param_hint="--pieces, --count, --json")
    if vocab is not None and model is not None:
        raise typer.BadParameter("give one of them.", param_hint="--vocab, --model")
    data, _ = read_input(text, file, "TEXT")
    if model is None:
        tokenizer = Tokenizer.named("world" if vocab is None else vocab)
    else:
        with open_checkpoint(model) as source:
            tokenizer = checkpoint_tokenizer(source)
    ids = _parse_ids(data) if decode else tokenizer.encode_bytes(data)
    if pieces:
        width = len(str(tokenizer.max_id))
        for token in ids:
            print(f"{token:>{width}}  {_literal(tokenizer.token_bytes(token))}")
    elif count:
        print(len(ids))
    elif as_json:
        text_bytes = tokenizer.decode_bytes(ids)
        facts = {
            "n_tokens": len(ids),
            "n_bytes": len(text_bytes),
            "ids": ids,
            "text": text_bytes.decode("utf-8", "replace"),
        }
        print(json.dumps(facts))
    elif decode:
        sys.stdout.buffer.write(tokenizer.decode_bytes(ids))
    else:
        print(*ids)


def _parse_ids(data: bytes) -> list[int]:
    words = data.replace(b",", b" ").split()
    for word in words:
        if not word.isdigit() or len(word) > 9:
            raise InvalidArgumentError(
                f"{word.decode('utf-8', 'replace')!r} is not a token id; give numbers, apart by "
                "spaces or commas"
            )
    return [int(word) for word in words]


def _literal(text: bytes) -> str:
    """As a Python literal: a str where the bytes are UTF-8."""
    try:
        return repr(text.decode())
    except UnicodeDecodeError:
        return repr(text)
