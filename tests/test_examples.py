"""The programs in examples/, and the one in the README, run and do what they say."""

import math
import os
import re
import subprocess
import sys

import checkpoint_files
import numpy as np
import pytest
import vocabularies
from conftest import ROOT

import wkvm


@pytest.fixture(scope="session")
def model_path(checkpoint):
    return checkpoint("r7-s128")


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    return vocabularies.write_small(tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt")


@pytest.fixture
def model(model_path, vocabulary):
    return wkvm.load(model_path, vocab=vocabulary)


def run(name: str, *arguments: object, stdin: str = "", **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *map(str, arguments)],
        input=stdin.encode(),
        capture_output=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, b"")
    return finished.stdout.decode()


def test_branches_are_what_each_session_would_have_said_alone(model_path, vocabulary, model):
    prompt = "Once upon a time"
    printed = run("branches.py", model_path, prompt, vocabulary).splitlines()
    session = model.session()
    session.feed(prompt)
    logits = session.logits()
    firsts = np.argsort(-logits, kind="stable")[:4].tolist()
    expected = []
    for token in firsts:
        with session.fork() as branch:
            text = [token]
            for _ in range(23):
                text.append(int(np.argmax(branch.forward(text[-1:]))))
        expected.append(repr(model.tokenizer.decode(text)))
    assert printed == expected


def write_biased(source, target, biases):
    """A copy of r7-s128 that adds to the logits of some tokens: {token: bias}."""

    def edit(arrays):
        arrays["ln_out.weight"][0], arrays["ln_out.bias"][0] = 0, 1  # the head's input 0 is 1
        arrays["head.weight"][:, 0] = 0
        for token, bias in biases.items():
            arrays["head.weight"][token, 0] = bias

    return checkpoint_files.write_edited(source, target, edit)


NEWLINE = 1 + ord("\n")


@pytest.fixture(scope="session")
def long_path(model_path, tmp_path_factory):
    """A model that never ends a text, nor a line."""
    folder = tmp_path_factory.mktemp("long")
    biases = {0: -50, NEWLINE: -50}
    return write_biased(model_path, folder / "long.safetensors", biases)


@pytest.fixture(scope="session")
def terse_path(model_path, tmp_path_factory):
    """A model that likes to end a line: its answers stop at a blank one."""
    folder = tmp_path_factory.mktemp("terse")
    biases = {0: -50, NEWLINE: 8}
    return write_biased(model_path, folder / "terse.safetensors", biases)


@pytest.mark.parametrize(("path", "reason"), [("long_path", "length"), ("terse_path", "stop")])
def test_a_hibernated_conversation_goes_on_as_if_never_stopped(
    request, path, reason, vocabulary, tmp_path
):
    path = request.getfixturevalue(path)
    said = ["hello", "and then?", "ok"]
    answers = [
        run("hibernate.py", path, tmp_path / "state", vocabulary, stdin=line + "\n")
        for line in said
    ]
    model = wkvm.load(path, vocab=vocabulary)
    session = model.session()
    history = []
    for line, answer in zip(said, answers, strict=True):
        question = f"User: {line}\n\nAssistant:"
        session.feed(question)
        generation = session.stream(max_tokens=100, stop=["\n\n"], seed=0)
        pieces = list(generation)
        assert generation.reason == reason
        assert answer == "".join(piece.text for piece in pieces) + "\n"
        history += model.tokenizer.encode(question)
        history += [piece.token for piece in pieces if piece.token is not None]
        if reason != "stop":  # the blank line that ends a turn is in the state once
            session.feed("\n\n")
            history += model.tokenizer.encode("\n\n")
    assert session.tokens == history
    assert model.resume(tmp_path / "state").tokens == history


def test_perplexity_counts_every_token_after_the_first(model_path, vocabulary, model, tmp_path):
    text = "Un état est une valeur. " * 50
    file = tmp_path / "text"
    file.write_text(text, encoding="utf-8")
    tokens = model.tokenizer.encode(text)
    assert len(tokens) > 2 * 256
    logits = model.session().forward(tokens, "all").astype(np.float64)[:-1]
    surprise = [
        math.log(math.fsum(map(math.exp, row))) - row[token]
        for row, token in zip(logits.tolist(), tokens[1:], strict=True)
    ]
    expected = math.fsum(surprise) / math.log(2) / len(text.encode())
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    printed = run("perplexity.py", model_path, file, vocabulary, **ascii_only)
    assert printed == f"{expected:.4f} bits per byte\n"


def test_the_program_in_the_readme_does_what_its_comments_say(tmp_path):
    readme = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    file = tmp_path / "state.safetensors"
    program = program.replace('"state.safetensors"', repr(str(file)), 1)
    names = {}
    exec(program, names)
    assert len(names["text"]) > 10
    for session in (names["again"], names["twin"]):
        text = "".join(session.generate(max_tokens=40, stop=["\n\n"], seed=1))
        assert text == names["text"]
    saved = names["session"].model.resume(file)
    assert saved.tokens == names["session"].tokens
