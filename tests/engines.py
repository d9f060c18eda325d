"""The engine as the tests drive it: whole runs in, bits out."""

import numpy as np

import wkvm

Bits = dict[str, bytes]


def tokens(n: int, seed: int = 0, n_vocab: int = 512) -> list[int]:
    """A random prompt."""
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


def run(session: wkvm.Session, prompt: list[int], chunk: int | None = None) -> np.ndarray:
    """Logits [len(prompt), V] of a prompt fed in calls of `chunk` tokens; None: in one call."""
    chunk = chunk or len(prompt)
    return np.concatenate(
        [session.forward(prompt[i : i + chunk], logits="all") for i in range(0, len(prompt), chunk)]
    )


def state_bits(session: wkvm.Session) -> Bits:
    """Name -> type, shape and bytes of every tensor of a session's state."""
    return {
        name: f"{value.dtype} {value.shape} ".encode() + value.tobytes()
        for name, value in session.state().items()
    }


def run_bits(session: wkvm.Session, prompt: list[int], chunk: int | None = None) -> Bits:
    """The bits of every logit and of the state afterwards."""
    logits = run(session, prompt, chunk)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    return {"logits": logits.tobytes(), **state_bits(session)}


def differing(a: Bits, b: Bits) -> list[str]:
    """The names whose bits differ: a short message where `a == b` would print megabytes."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
