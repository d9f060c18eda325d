"""How well a model predicts a text: python examples/perplexity.py MODEL TEXT_FILE [VOCABULARY]."""

import sys
from pathlib import Path

import numpy as np

import wkvm

CHUNK = 256  # tokens whose logits are held at once


def bits_per_byte(model: wkvm.Model, text: str) -> float:
    """-log2 of the probability of a text after its first token, divided by its bytes in UTF-8."""
    tokens = model.tokenizer.encode(text)
    total = 0.0
    with model.session() as session:
        for start in range(0, len(tokens) - 1, CHUNK):
            chunk = tokens[start : start + CHUNK]
            logits = np.asarray(session.forward(chunk, "all"), dtype=np.float64)  # [T, V]
            targets = tokens[start + 1 : start + 1 + len(chunk)]
            logits = logits[: len(targets)]
            norms = np.logaddexp.reduce(logits, axis=1)
            total += float(np.sum(norms - logits[np.arange(len(targets)), targets]))
    return total / np.log(2.0) / len(text.encode())


if __name__ == "__main__":
    path, text_file, *vocabulary = sys.argv[1:]
    model = wkvm.load(path, vocab=vocabulary[0] if vocabulary else None)
    text = Path(text_file).read_text(encoding="utf-8")
    print(f"{bits_per_byte(model, text):.4f} bits per byte")
