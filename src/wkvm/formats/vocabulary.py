"""A vocabulary in a checkpoint's metadata, so that one file is all that a model needs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from wkvm._engine import Tokenizer
from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.formats.load import naming

#: Metadata entry: the text of a vocabulary file (docs/tokenizer.md).
VOCAB_KEY = "wkvm.vocab"

_MAX_FILE_BYTES = 4 << 20  # of a vocabulary file; a longer one is none

_Tokenizer = TypeVar("_Tokenizer", bound=Tokenizer)


def recorded_tokenizer(
    path: Path, metadata: Mapping[str, str], n_vocab: int, make: Callable[[bytes], _Tokenizer]
) -> _Tokenizer | None:
    """The tokenizer of the vocabulary in a file's metadata; None without one.

    Args:
        path: of the file, for messages.
        metadata: of the file.
        n_vocab: rows of the model's head, V: every id must be below it.
        make: what takes a vocabulary file's content.

    Raises:
        FormatError: the entry is no vocabulary, or none for this model.
    """
    text = metadata.get(VOCAB_KEY)
    if text is None:
        return None
    with naming(path):
        tokenizer = make(text.encode())
    if tokenizer.max_id >= n_vocab:
        raise FormatError(
            f"{path}: its vocabulary has ids up to {tokenizer.max_id}, its model {n_vocab} "
            "entries; name the right vocabulary with vocab=FILE (--vocab FILE)"
        )
    return tokenizer


def vocabulary_text(path: str | Path, n_vocab: int) -> str:
    """The content of a vocabulary file, checked.

    Args:
        path: of the file.
        n_vocab: rows of the model's head, V: every id must be below it.

    Raises:
        FileError: the system refuses.
        FormatError: it is no vocabulary; the message names the line.
        InvalidArgumentError: it is none for this model.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    with naming(path):
        check_fits(Tokenizer(data), n_vocab)
    return data.decode()


def check_fits(tokenizer: Tokenizer, n_vocab: int) -> None:
    """Raise InvalidArgumentError if a tokenizer has ids that the model's head, [V, D], lacks."""
    if tokenizer.max_id >= n_vocab:
        raise InvalidArgumentError(
            f"the vocabulary has ids up to {tokenizer.max_id}; the model has {n_vocab} entries"
        )
