"""The training recipe: its texts, its vocabulary, its model, and a short run of all of it."""

import dataclasses
import json
import random
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

import wkvm

sys.path.append(str(ROOT / "examples" / "train"))
import corpus
import prepare
import questions
import stories
import vocabulary


def documents(n):
    return [corpus.Document("made", text) for text in stories.stories(random.Random(3), n)]


def unlike(n):
    """Documents that have no phrase in common."""
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefgh", k=5)) for _ in range(2000)]
    return [corpus.Document("unlike", " ".join(rng.choices(words, k=40))) for _ in range(n)]


# ---------------------------------------------------------------- texts


def test_a_folder_is_read_as_its_documents(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n1\n<|endoftext|>\n\n<|endoftext|>\ntwo\n")
    (tmp_path / "b.txt").write_text("drei – 三")
    assert corpus.read_folder(tmp_path, ["a", "b"]) == [
        corpus.Document("a", "one\n\n1"),
        corpus.Document("a", "two"),
        corpus.Document("b", "drei – 三"),
    ]


def test_a_document_is_held_out_whatever_else_there_is():
    some = unlike(400)
    _, all_held = corpus.divide(some)
    train, held = corpus.divide(some[::2])
    assert 0 < len(all_held) < len(some) / 10
    assert set(held) <= set(all_held)
    assert not set(held) & set(train)


def test_a_held_out_text_that_stands_in_a_training_text_is_used_for_neither():
    train, held = corpus.divide(unlike(400))
    known = held[0]
    book = next(
        document
        for i in range(1000)
        if (document := corpus.Document("book", f"Part {i}. {known.text} The end."))
        and corpus.divide([document])[0]
    )
    again_train, again_held = corpus.divide([*train, *held, book])
    assert known not in again_held
    assert known not in again_train
    assert set(held) - {known} == set(again_held)


@pytest.mark.parametrize("make", [stories.stories, questions.questions, questions.dialogues])
def test_made_texts_are_plain_and_the_same_for_the_same_seed(make):
    texts = list(make(random.Random(5), 200))
    assert texts == list(make(random.Random(5), 200))
    assert texts != list(make(random.Random(6), 200))
    for text in texts:
        assert text.isascii()
        assert text == text.strip()
        assert not set("{}[]|<>") & set(text), text
        assert "  " not in text


# ---------------------------------------------------------------- vocabulary


def test_the_vocabulary_is_one_that_wkvm_reads_and_shortens_the_texts(tmp_path):
    texts = [document.text for document in documents(100)]
    strings = vocabulary.choose(((text, 1.0) for text in texts), 300)
    assert len(strings) == 300
    assert strings == vocabulary.choose(((text, 2.0) for text in reversed(texts)), 300)
    vocabulary.write(tmp_path / "vocab.txt", strings)
    tokenizer = wkvm.Tokenizer.from_file(tmp_path / "vocab.txt")
    assert tokenizer.max_id == 256 + 300
    assert [tokenizer.token_bytes(i) for i in range(1, 257)] == [bytes([b]) for b in range(256)]
    assert [tokenizer.token_bytes(i) for i in range(257, 557)] == strings
    text = "\n\n".join(texts)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) < len(text) / 2


def test_no_string_of_the_vocabulary_is_useless():
    texts = [document.text for document in documents(100)]
    strings = vocabulary.choose(((text, 1.0) for text in texts), 300)
    joined = "\n".join(texts).encode()
    assert [string for string in strings if string not in joined] == []


# ---------------------------------------------------------------- the model, with PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="examples/train/requirements.txt is not installed")


@pytest.mark.slow
def test_chunked_wkv7_is_the_recurrence(torch):
    from wkv7 import CHUNK, wkv7

    torch.manual_seed(1)
    shape = (2, 3 * CHUNK, 2, 64)
    r, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    log_w = -0.606531 * torch.rand(shape, dtype=torch.float64)
    log_w[:, :, 0] = -0.606531  # the fastest decay there is, all along
    a = -torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=3)
    b = -a * torch.rand(shape, dtype=torch.float64)
    state, rows = torch.zeros(2, 2, 64, 64, dtype=torch.float64), []
    for t in range(shape[1]):
        gone = state @ a[:, t, :, :, None]
        state = state * log_w[:, t, :, None].exp() + gone @ b[:, t, :, None]
        state = state + v[:, t, :, :, None] @ k[:, t, :, None]
        rows.append((state @ r[:, t, :, :, None])[..., 0])
    expected = torch.stack(rows, 1)
    y = wkv7(*(x.float() for x in (r, log_w, k, v, a, b)))
    # float32, and sums of up to 64 products of values around 10.
    assert float((y - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


@pytest.mark.slow
def test_the_exported_model_is_the_one_that_was_trained(torch, tmp_path):
    """wkvm's forward of the export against PyTorch's, over blocks that attention leaves out."""
    from export import export
    from model import RwkvX, Shape

    torch.manual_seed(2)
    model = RwkvX(Shape(384, 128, 4, 2, 512))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
            if weight.ndim == 2 and not name.endswith(("r_k", "att.x")):
                weight.copy_(weight.half())  # as the file holds it
    texts = ((document.text, 1.0) for document in documents(20))
    vocabulary.write(tmp_path / "vocab.txt", vocabulary.choose(texts, 127))
    saved = {"model": model.state_dict(), "shape": dataclasses.asdict(model.shape)}
    torch.save(saved, tmp_path / "best.pt")
    export(tmp_path / "best.pt", tmp_path / "vocab.txt", tmp_path / "model.safetensors")
    loaded = wkvm.load(tmp_path / "model.safetensors", dtype="fp32", kv_dtype="fp32")
    assert loaded.identity.policy_options == {"moba_chunk_size": 64, "moba_topk": 3}
    assert loaded.tokenizer.max_id == 383
    tokens = np.random.default_rng(4).integers(1, 384, 512)
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)[None])[0].numpy()
    logits = loaded.session().forward(tokens.tolist(), "all")
    # float32 in another order of summation; choosing another block moves logits by far more.
    assert np.abs(logits - expected).max() <= 1e-3


def test_every_file_may_hold_one_document(tmp_path):
    """Some of them are held out, and then there is nothing of their source to train on."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, document in enumerate(unlike(300)):
        (folder / f"book{i}.txt").write_text(document.text)
    prepare.prepare(folder, tmp_path, prepare.read_mixture(None, folder), 384)
    held_out = json.loads((tmp_path / "held_out.json").read_text())
    arrays = np.load(tmp_path / "tokens.npz")
    assert held_out
    assert all(entry["weight"] > 0 for entry in held_out.values())
    assert not set(held_out) & set(arrays)
    assert len(arrays) // 2 + len(held_out) == 300


def test_texts_that_are_too_few_are_refused(tmp_path):
    (tmp_path / "one.txt").write_text("alone")
    with pytest.raises(ValueError, match="can be held out"):
        prepare.prepare(tmp_path, tmp_path, prepare.read_mixture(None, tmp_path), 384)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_recipe_runs_from_its_one_command_and_goes_on_where_it_stopped(torch, tmp_path):
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    for source, part in (("one", slice(0, 150)), ("two", slice(150, 400))):
        texts = [document.text for document in unlike(400)[part]]
        (folder / f"{source}.txt").write_text("\n<|endoftext|>\n".join(texts))

    def run(steps, more=""):
        sizes = "--n-embd 64 --n-rwkv 2 --n-attn 1 --n-vocab 512 --batch 4 --context 256"
        options = f"--steps {steps} --decay-steps 20 --eager --official {sizes} {more}"
        result = subprocess.run(
            [sys.executable, ROOT / "examples/train/run.py", folder, out, *options.split()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stdout

    assert "step 40 of 40" in run(40)
    first = json.loads((out / "evaluation.json").read_text())
    assert "going on from step 40" in run(80)
    second = json.loads((out / "evaluation.json").read_text())
    before, after = (found["held_out"]["fp32"]["bits_per_byte"] for found in (first, second))
    assert after < before - 0.1
    assert all(row["agrees"] for row in second["official"])
    assert (out / "curve.svg").read_text().startswith("<?xml")
    with pytest.raises(AssertionError, match="with another seed"):
        run(80, "--seed 9")
    model = wkvm.load(out / "model-int8.safetensors")
    session = model.session()
    session.feed("Once upon a time")
    assert len("".join(session.generate(max_tokens=30, seed=1))) > 10
