"""The instruction set that ran is the one that was asked for, or nothing ran."""

import platform

import engines
import pytest

import wkvm
from wkvm._engine import isa_list
from wkvm.errors import UnsupportedError


def test_scalar_is_always_there_and_last():
    assert isa_list()[-1] == "scalar"


def test_the_best_set_runs_by_default(checkpoint, monkeypatch):
    monkeypatch.delenv("WKVM_ISA", raising=False)
    assert wkvm.load(checkpoint("r7-s128")).isa == isa_list()[0]


@pytest.mark.parametrize("isa", isa_list())
def test_the_forced_set_runs(checkpoint, monkeypatch, isa):
    monkeypatch.setenv("WKVM_ISA", isa)
    model = wkvm.load(checkpoint("r7-s128"))
    assert model.isa == isa
    model.session().forward(engines.tokens(3))


@pytest.mark.parametrize("isa", ["sse9", "AVX2", "avx2 ", "scalar,avx2", "best"])
def test_an_unknown_set_is_refused(checkpoint, monkeypatch, isa):
    monkeypatch.setenv("WKVM_ISA", isa)
    with pytest.raises(UnsupportedError, match=r"WKVM_ISA|instruction set"):
        wkvm.load(checkpoint("r7-s128"))


def test_a_set_of_another_machine_is_refused(checkpoint, monkeypatch):
    foreign = "neon" if platform.machine() in ("x86_64", "AMD64") else "avx2"
    monkeypatch.setenv("WKVM_ISA", foreign)
    with pytest.raises(UnsupportedError, match=foreign):
        wkvm.load(checkpoint("r7-s128"))
