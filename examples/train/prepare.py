"""Texts to tokens: divides the documents, chooses the vocabulary, encodes, and stores the result.

In the output folder: ``vocab.txt``, ``tokens.npz`` (per source ``NAME`` and ``NAME.starts``: the
training tokens, each document ended by 0, and where the documents begin), and ``held_out.json``
(the texts that are never trained on, by source, and the source's weight: the bytes that the last
part of the training draws from it, its held-out ones included).
"""

import json
import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import questions
import stories
import vocabulary

import wkvm

Weights = dict[str, tuple[float, float]]

# Sources that are made, not read: the number of documents, and their generator.
GENERATED: dict[str, tuple[int, Callable[[random.Random, int], Iterator[str]]]] = {
    "stories": (6_000, stories.stories),
    "questions": (24_000, questions.questions),
    "dialogues": (4_000, questions.dialogues),
}
_SEED = 2026


def read_mixture(path: Path | None, folder: Path) -> Weights:
    """How often each source is drawn in the first part of the training, and in the last.

    Without a file every text of the folder is drawn alike, and nothing is generated.
    """
    if path is None:
        return {text.stem: (1.0, 1.0) for text in sorted(folder.glob("*.txt"))}
    table = tomllib.loads(path.read_text(encoding="utf-8"))["sources"]
    return {source: (float(first), float(last)) for source, (first, last) in table.items()}


def prepare(folder: Path, out: Path, mixture: Weights, n_vocab: int) -> None:
    """Write vocabulary, tokens and held-out texts for the sources of ``mixture`` into ``out``.

    Raises:
        ValueError: the texts are too few, or too much alike, to measure a model with.
    """
    read = corpus.read_folder(folder, [s for s in mixture if s not in GENERATED])
    train, held_out = corpus.divide(read)
    if not held_out:
        raise ValueError(
            f"no document of {folder} can be held out: it takes some 100 that are not alike"
        )
    for source, (n, generate) in GENERATED.items():
        if source in mixture:
            texts = generate(random.Random(_SEED), n)
            train += [corpus.Document(source, text) for text in texts]
    weighted = ((document.text, mixture[document.source][1]) for document in train)
    vocabulary.write(out / "vocab.txt", vocabulary.choose(weighted, n_vocab - 257))
    tokenizer = wkvm.Tokenizer.from_file(out / "vocab.txt")
    rng = random.Random(_SEED)
    rng.shuffle(train)
    arrays: dict[str, np.ndarray] = {}
    for source in mixture:
        runs = [[*tokenizer.encode(d.text), 0] for d in train if d.source == source]
        if not runs:  # its only document is held out
            continue
        arrays[source] = np.concatenate([np.array(run, np.uint16) for run in runs])
        arrays[f"{source}.starts"] = np.cumsum([0] + [len(run) for run in runs[:-1]])
        n = len(arrays[source])
        density = sum(len(d.text.encode()) for d in train if d.source == source) / n
        print(f"{source:40} {len(runs):6} documents {n:9} tokens of {density:.2f} bytes")
    entries: dict[str, dict[str, Any]] = {}
    for document in held_out:
        entry = entries.setdefault(document.source, {"weight": 0.0, "texts": []})
        entry["texts"].append(document.text)
    for document in (*train, *held_out):
        if document.source in entries:
            entry = entries[document.source]
            entry["weight"] += mixture[document.source][1] * len(document.text.encode())
    (out / "held_out.json").write_text(json.dumps(entries, ensure_ascii=False, indent=0))
    np.savez(out / "tokens.tmp.npz", **arrays)
    (out / "tokens.tmp.npz").replace(out / "tokens.npz")  # last: it says that all is there
