"""A conversation that survives its process: python examples/hibernate.py MODEL STATE [VOCABULARY].

Each run answers one line of input. STATE is a file that holds everything: the first run makes it,
and later ones go on from it, without reading the conversation again.
"""

import sys
from pathlib import Path

import wkvm


def turn(model: wkvm.Model, state: Path, said: str) -> str:
    """The answer to one line; the state after it replaces the file."""
    session = model.resume(state) if state.exists() else model.session()
    with session:
        session.feed(f"User: {said}\n\nAssistant:")
        generation = session.stream(max_tokens=100, stop=["\n\n"], seed=0)
        answer = "".join(piece.text for piece in generation)
        if generation.stop is None:  # else the state has seen the blank line already
            session.feed("\n\n")
        session.save(state, overwrite=True)
    return answer


if __name__ == "__main__":
    path, state, *vocabulary = sys.argv[1:]
    model = wkvm.load(path, vocab=vocabulary[0] if vocabulary else None)
    print(turn(model, Path(state), sys.stdin.readline().strip()))
