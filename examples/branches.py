"""One prompt, several continuations: python examples/branches.py MODEL PROMPT [VOCABULARY].

The prompt is read once. Each branch is a fork of the state after it, and all branches run on in one
batch, so the weights are read once for all of them.
"""

import sys

import numpy as np

import wkvm

N_BRANCHES = 4
N_TOKENS = 24


def branches(model: wkvm.Model, prompt: str) -> list[str]:
    """Continuations of a prompt: one for each of its N_BRANCHES most probable next tokens."""
    trunk = model.session()
    trunk.feed(prompt)
    first = np.argsort(-trunk.logits(), kind="stable")[:N_BRANCHES]
    forks = [trunk.fork() for _ in first]
    texts = [[int(token)] for token in first]
    while len(texts[0]) < N_TOKENS:
        logits = model.forward([(fork, text[-1:]) for fork, text in zip(forks, texts, strict=True)])
        for text, values in zip(texts, logits, strict=True):
            text.append(int(np.argmax(values)))
    return [model.tokenizer.decode(text) for text in texts]


if __name__ == "__main__":
    path, prompt, *vocabulary = sys.argv[1:]
    model = wkvm.load(path, n_slots=N_BRANCHES + 1, vocab=vocabulary[0] if vocabulary else None)
    for text in branches(model, prompt):
        print(repr(text))
