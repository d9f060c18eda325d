"""A folder of texts as documents: read, split, and divided into training and held-out ones."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

END = "<|endoftext|>"
HELD_OUT = 50  # one document of so many
_PHRASE = 8  # words; a held-out document whose phrases stand in a training one is a leak


@dataclass(frozen=True)
class Document:
    """One text and the file it came from, by its name without a suffix."""

    source: str
    text: str


def read_folder(folder: Path, sources: Iterable[str]) -> list[Document]:
    """The documents of ``folder/SOURCE.txt``, UTF-8, divided by lines of ``<|endoftext|>``.

    Raises:
        FileNotFoundError: a source has no file in the folder.
    """
    documents = []
    for source in sources:
        text = (folder / f"{source}.txt").read_text(encoding="utf-8")
        pieces = (piece.strip() for piece in text.split(END))
        documents += [Document(source, piece) for piece in pieces if piece]
    return documents


def divide(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Training documents and held-out ones: about one in 50, chosen by the hash of its text.

    So a document is on the same side whatever else the folder holds. Twins of a text are on one
    side by themselves; a held-out text that stands in a longer training document, or differs from
    one by little, is used for neither: more than a tenth of its phrases of 8 words were seen.
    """
    train, held_out = [], []
    for document in documents:
        digest = hashlib.sha256(document.text.encode()).digest()
        is_held_out = int.from_bytes(digest[:4], "big") % HELD_OUT == 0
        (held_out if is_held_out else train).append(document)
    wanted = {phrase for document in held_out for phrase in _phrases(document.text)}
    seen = {phrase for document in train for phrase in _phrases(document.text) if phrase in wanted}
    fresh = []
    for document in {document.text: document for document in held_out}.values():
        phrases = set(_phrases(document.text))
        if len(phrases & seen) <= len(phrases) / 10:
            fresh.append(document)
    return train, fresh


def _phrases(text: str) -> Iterable[int]:
    words = re.findall(r"\w+", text.lower())
    return (hash(tuple(words[i : i + _PHRASE])) for i in range(max(len(words) - _PHRASE + 1, 1)))
