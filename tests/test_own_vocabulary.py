"""A vocabulary in a checkpoint's metadata: it is used, it travels, and it is not trusted."""

import json
import re

import checkpoint_files
import pytest
import typer
import vocabularies
from typer.testing import CliRunner

import wkvm
from wkvm.cli.convert import convert as convert_command
from wkvm.cli.doctor import doctor as doctor_command
from wkvm.cli.info import info as info_command
from wkvm.cli.tokenize import tokenize as tokenize_command
from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.open import open_checkpoint

TEXT = "Once upon a time\n"

app = typer.Typer()
app.command("convert")(convert_command)
app.command("doctor")(doctor_command)
app.command("info")(info_command)
app.command("tokenize")(tokenize_command)


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def plain(checkpoint):
    """A model of 512 entries, without a vocabulary; wkvm knows none of this size."""
    return checkpoint("r7-s128")


@pytest.fixture(scope="module")
def tensors(plain):
    return checkpoint_files.read(plain)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return vocabularies.write_small(tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt")


@pytest.fixture(scope="module")
def other(vocabulary):
    """The same tokens under other ids."""
    path = vocabulary.with_name("other.txt")
    lines = [line.split(" ", 1) for line in vocabulary.read_text().splitlines()]
    path.write_text("".join(f"{512 - int(token)} {rest}\n" for token, rest in lines))
    return path


@pytest.fixture
def holding(tensors, tmp_path):
    """Writes a checkpoint whose metadata holds a text as its vocabulary."""

    def write(text, name="holding.safetensors"):
        path = tmp_path / name
        checkpoint_files.write_safetensors(path, tensors, {"wkvm.vocab": text})
        return path

    return write


def recorded(path):
    with open_checkpoint(path) as source:
        return source.metadata.get("wkvm.vocab")


# ---- which vocabulary is used


def test_a_model_reads_and_writes_with_the_vocabulary_in_its_file(holding, vocabulary):
    model = wkvm.load(holding(vocabulary.read_text()))
    expected = wkvm.Tokenizer.from_file(vocabulary)
    assert model.tokenizer.digest == expected.digest
    assert model.tokenizer.encode(TEXT) == expected.encode(TEXT)


def test_a_named_vocabulary_goes_before_the_file_s(holding, vocabulary, other):
    path = holding(vocabulary.read_text())
    named = wkvm.Tokenizer.from_file(other)
    assert wkvm.load(path, vocab=other).tokenizer.digest == named.digest
    assert wkvm.load(path, vocab=named).tokenizer is named


def test_the_file_s_vocabulary_goes_before_the_size_s(tensors, tmp_path):
    raw = dict(tensors)
    for name in ("emb.weight", "head.weight"):  # as many entries as there are bytes
        dtype, (_, width), data = raw[name]
        raw[name] = (dtype, (256, width), data[: 256 * width * checkpoint_files.SIZES[dtype]])
    checkpoint_files.write_safetensors(tmp_path / "bytes", raw)
    assert wkvm.load(tmp_path / "bytes").tokenizer.encode("a") == [97]
    text = "".join(f"{i} {bytes([255 - i])!r} 1\n" for i in range(1, 256))
    checkpoint_files.write_safetensors(tmp_path / "own", raw, {"wkvm.vocab": text})
    assert wkvm.load(tmp_path / "own").tokenizer.encode("a") == [255 - 97]


def test_shards_that_agree_on_a_vocabulary_have_it(tensors, vocabulary, tmp_path):
    text = vocabulary.read_text()
    index = checkpoint_files.write_sharded(tmp_path, tensors, 2)
    for i, shard in enumerate(sorted(tmp_path.glob("*.safetensors"))):
        part = checkpoint_files.read_safetensors(shard)
        checkpoint_files.write_safetensors(shard, part, {"wkvm.vocab": text, "number": str(i)})
    expected = wkvm.Tokenizer.from_file(vocabulary).digest
    assert wkvm.load(index).tokenizer.digest == expected


def test_a_fingerprint_is_that_of_the_vocabulary_wherever_it_lies(holding, plain, vocabulary):
    own = wkvm.load(holding(vocabulary.read_text()))
    assert own.fingerprint == wkvm.load(plain, vocab=vocabulary).fingerprint
    assert own.fingerprint != wkvm.load(plain).fingerprint


def test_a_state_does_not_meet_another_vocabulary(holding, vocabulary, other, tmp_path):
    session = wkvm.load(holding(vocabulary.read_text())).session()
    session.feed(TEXT)
    session.save(tmp_path / "state")
    crlf = vocabulary.read_text().replace("\n", "\r\n")  # the same vocabulary, spelt differently
    again = wkvm.load(holding(crlf, "crlf")).resume(tmp_path / "state")
    assert again.tokens == session.tokens
    with pytest.raises(wkvm.WkvmError, match="vocabulary"):
        wkvm.load(holding(other.read_text(), "other")).resume(tmp_path / "state")


# ---- how it travels


def test_converting_carries_the_vocabulary_along(holding, plain, vocabulary, tmp_path):
    text = vocabulary.read_text()
    convert_checkpoint(holding(text), tmp_path / "m", dtype="int8")
    assert recorded(tmp_path / "m") == text
    convert_checkpoint(plain, tmp_path / "none", dtype="int8")
    assert recorded(tmp_path / "none") is None
    expected = wkvm.load(plain, dtype="int8", vocab=vocabulary)
    assert wkvm.load(tmp_path / "m").fingerprint == expected.fingerprint


def test_converting_embeds_the_vocabulary_that_is_named(
    holding, plain, vocabulary, other, tmp_path
):
    assert run("convert", plain, tmp_path / "m", "--vocab", vocabulary).exit_code == 0
    assert recorded(tmp_path / "m") == vocabulary.read_text()
    replacing = ("--vocab", other)
    assert (
        run("convert", holding(vocabulary.read_text()), tmp_path / "n", *replacing).exit_code == 0
    )
    assert recorded(tmp_path / "n") == other.read_text()


def test_the_same_vocabulary_gives_the_same_bytes_from_a_file_and_from_a_source(
    holding, plain, vocabulary, tmp_path
):
    convert_checkpoint(plain, tmp_path / "a", vocab=vocabulary)
    convert_checkpoint(holding(vocabulary.read_text()), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_info_tells_a_vocabulary_apart_and_does_not_print_it(holding, plain, vocabulary):
    path = holding(vocabulary.read_text())
    digest = wkvm.Tokenizer.from_file(vocabulary).digest
    facts = json.loads(run("info", path, "--json").stdout)
    assert facts["vocabulary"] == {"n_entries": 511, "sha256": digest}
    text = run("info", path).stdout
    assert re.search(
        rf"\nvocabulary +512 tokens; in the file, 511 entries, sha256 {digest}\n", text
    )
    assert max(map(len, text.splitlines())) < 200
    assert json.loads(run("info", plain, "--json").stdout)["vocabulary"] is None
    assert re.search(r"\nvocabulary +512 tokens\n", run("info", plain).stdout)


def test_tokenize_uses_the_vocabulary_of_a_model(holding, plain, checkpoint, vocabulary, tmp_path):
    path = holding(vocabulary.read_text())
    expected = " ".join(map(str, wkvm.Tokenizer.from_file(vocabulary).encode(TEXT)))
    convert_checkpoint(path, tmp_path / "m", dtype="int8")
    for model in (path, tmp_path / "m"):
        assert run("tokenize", TEXT, "--model", model).stdout == expected + "\n"
    assert isinstance(run("tokenize", TEXT, "--model", plain).exception, InvalidArgumentError)
    assert run("tokenize", TEXT, "--model", path, "--vocab", "world").exit_code == 2


# ---- what is refused

WRONG = {
    "": "empty",
    "1 'a' 1\n2 'b' 2\n": "line 2",
    "1 'a' 1\n\n": "line 2",
    "1 'a' 1\n1 'b' 1\n": "line 2",
    "1 'a' 1\n2 'a' 1\n": "line 2",
    "1 __import__('os') 1\n": "line 1",
    "0 'a' 1\n": "line 1",
    "9" * 100: "line 1",
    "4294967297 'a' 1\n": "line 1",
    "1 'a' 1\n512 'b' 1\n": "ids up to 512, its model 512 entries",
    " " * (4 << 20) + " ": "at most 4194304 bytes",
}


@pytest.mark.parametrize(("text", "reason"), WRONG.items(), ids=range(len(WRONG)))
def test_a_vocabulary_that_is_wrong_is_refused_by_file_and_line(holding, tmp_path, text, reason):
    path = holding(text)
    expected = rf"^{re.escape(str(path))}: .*{re.escape(reason)}"
    with pytest.raises(FormatError, match=expected):
        wkvm.load(path)
    with pytest.raises(FormatError, match=expected):
        convert_checkpoint(path, tmp_path / "out")
    for command in (["info", path], ["tokenize", "a", "--model", path]):
        error = run(*command).exception
        assert isinstance(error, FormatError)
        assert re.search(expected, str(error))
    problems = json.loads(run("doctor", "--model", path, "--json").stdout)["problems"]
    assert re.search(expected, problems[-1])
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidArgumentError):  # the one that was named is used
        wkvm.load(path, vocab="world")


@pytest.mark.parametrize(("text", "reason"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_vocabulary_is_not_embedded(plain, tmp_path, text, reason):
    path = tmp_path / "vocabulary.txt"
    path.write_text(text)
    is_vocabulary = "its model" in reason  # another model's
    expected = InvalidArgumentError if is_vocabulary else FormatError
    with pytest.raises(expected, match=reason.split(",")[0]) as refused:
        convert_checkpoint(plain, tmp_path / "out", vocab=path)
    assert is_vocabulary or str(refused.value).startswith(f"{path}: ")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_cannot_be_read_is_a_file_error(plain, tmp_path):
    for path in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(FileError, match="cannot read"):
            convert_checkpoint(plain, tmp_path / "out", vocab=path)
