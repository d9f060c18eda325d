"""An interrupt at any moment leaves a session that knows what its slot has run."""

import gc

import numpy as np
import pytest

import wkvm
from wkvm.errors import InvalidArgumentError


class InterruptingBackend:
    """A backend whose next forward is interrupted, before or after the engine has run it."""

    def __init__(self, backend, after):
        self._backend = backend
        self._after = after
        self._armed = True

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def forward(self, *args):
        if not self._armed:
            return self._backend.forward(*args)
        self._armed = False
        if self._after:
            self._backend.forward(*args)
        raise KeyboardInterrupt


@pytest.fixture
def model(checkpoint) -> wkvm.Model:
    return wkvm.load(checkpoint("r7-s128"), n_slots=3)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_an_interrupted_forward_leaves_tokens_and_state_in_step(model, after, pending):
    session, twin = model.session(), model.session()
    for each in (session, twin):
        each.forward([1, 2, 3])
        if pending:
            each.accept(9)
    real = model.backend
    model.backend = InterruptingBackend(real, after)
    with pytest.raises(KeyboardInterrupt):
        session.forward([4, 5])
    model.backend = real
    before = [1, 2, 3, 9] if pending else [1, 2, 3]
    assert session.tokens == ([*before, 4, 5] if after else before)
    if after:
        twin.forward([4, 5])
    assert session.pending == twin.pending
    assert session.snapshot() == twin.snapshot()


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_batch_leaves_every_session_in_step(model, after):
    sessions = [model.session() for _ in range(3)]
    real = model.backend
    model.backend = InterruptingBackend(real, after)
    with pytest.raises(KeyboardInterrupt):
        model.forward([(session, [7, 8]) for session in sessions])
    model.backend = real
    for session in sessions:
        assert session.tokens == ([7, 8] if after else [])
        assert real.n_tokens(session.slot) == len(session.tokens)


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_generation_goes_on_with_the_same_tokens(checkpoint, after):
    model = wkvm.load(checkpoint("x128-6p2"), vocab="bytes")
    options = {"temperature": 0.7, "seed": 5, "ignore_eos": True}
    whole, cut = model.session(), model.session()
    for session in (whole, cut):
        session.forward([1, 2, 3])
    list(whole.stream(8, **options))
    pieces = iter(cut.stream(8, **options))
    for _ in range(3):
        next(pieces)
    real = model.backend
    model.backend = InterruptingBackend(real, after)
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    model.backend = real
    del options["seed"]
    list(cut.stream(5, **options))
    assert cut.tokens == whole.tokens
    assert len(whole.tokens) == 3 + 8


def test_a_finalizer_inside_a_call_gives_its_slot_back_later(model):
    class Holder:
        def __init__(self, session):
            self.session = session
            self.cycle = self

        def __del__(self):
            self.session.close()

    Holder(model.session())
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        session = model.session()
        session.forward([1])
        session.state()
        session.snapshot()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    others = [model.session(), model.session()]  # with `session`, all three slots
    assert len({session.slot, *(other.slot for other in others)}) == 3


def test_tokens_that_change_while_they_are_read_harm_nothing(model):
    class Shrinking(int):
        def __index__(self):
            tokens.clear()
            return 3

    tokens: list[int] = []
    tokens += [Shrinking(3), 1, 2]
    session = model.session()
    session.forward(tokens, "none")
    assert session.tokens[0] == 3


def test_what_is_no_sequence_of_integers_is_refused_by_type(model):
    session = model.session()
    for tokens in (None, 5, [1.5], ["a"], np.ones(3), np.ones((2, 2), dtype=np.uint32), [-1]):
        with pytest.raises(InvalidArgumentError):
            session.forward(tokens)
    assert session.tokens == []


def test_a_second_generation_ends_the_first(checkpoint):
    model = wkvm.load(checkpoint("x128-6p2"), vocab="bytes")
    session = model.session()
    session.forward([65, 66])
    first = iter(session.stream(5, temperature=0.0, ignore_eos=True))
    next(first)
    next(iter(session.stream(5, temperature=0.0, ignore_eos=True)))
    with pytest.raises(InvalidArgumentError, match="another generation"):
        next(first)


def test_a_dropped_session_gives_its_slot_back_at_once(checkpoint):
    model = wkvm.load(checkpoint("x128-6p2"), vocab="bytes", n_slots=1)
    for _ in range(3):
        session = model.session()
        session.forward([65])
        list(session.stream(2, temperature=0.0, ignore_eos=True))
        del session
