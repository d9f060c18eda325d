"""The bundled model is trained, so it shows what random weights cannot: the engine's quality.

``examples/train/publish.py`` wrote the numbers of tests/data/story.
"""

import json
import re
import sys

import pytest
from conftest import DATA, ROOT

import wkvm
from wkvm.bundled import bundled_model_path
from wkvm.formats.load import load_model

sys.path.append(str(ROOT / "examples" / "train"))
import card
import measure

STORY = DATA / "story"
PINNED = json.loads((STORY / "pinned.json").read_text())


@pytest.fixture(scope="module")
def model():
    return wkvm.load()


@pytest.fixture(scope="module")
def bits(model):
    text = (STORY / "held_out.txt").read_text(encoding="utf-8")
    return measure.bits_per_byte(model, text.split("<|endoftext|>"))


def test_model_and_vocabulary_take_at_most_8_megabytes():
    assert bundled_model_path().stat().st_size <= 8_000_000


def test_the_card_is_of_this_model():
    card = bundled_model_path().with_name("MODEL_CARD.md").read_text(encoding="utf-8")
    assert load_model(bundled_model_path()).weights_digest() in card
    assert f"{bundled_model_path().stat().st_size:,} bytes" in card


def test_the_card_shows_what_the_model_says(model):
    text = bundled_model_path().with_name("MODEL_CARD.md").read_text(encoding="utf-8")
    for found in measure.samples(model, measure.PROMPTS["samples"]):
        assert card.sample(found) in text
    for found in measure.answers(model, measure.PROMPTS["questions"]):
        assert f"| {found['question']} | {found['answer']} |" in text


def test_the_recipe_tells_the_same_run_as_the_card():
    text = bundled_model_path().with_name("MODEL_CARD.md").read_text(encoding="utf-8")
    run = re.search(r"([\d,]+) steps, ([\d.]+) million tokens, ([\d.]+) hours", text)
    ends = re.search(r"training loss is ([\d.]+) nats.*?came to ([\d.]+) bits", text, re.DOTALL)
    steps, tokens, hours = run.groups()
    loss, bits_per_byte = map(float, ends.groups())
    recipe = (ROOT / "examples" / "train" / "README.md").read_text(encoding="utf-8")
    assert f"{steps} steps of 6,144 tokens, {tokens} million in all" in recipe
    assert f"took {float(hours):.1f} hours" in recipe
    assert f"ended at {loss:.2f} nats" in recipe
    assert f"held-out texts at {bits_per_byte:.2f} bits" in recipe


def test_the_notices_that_licences_ask_for_are_in_the_package():
    credits_ = bundled_model_path().with_name("CREDITS.txt").read_text(encoding="utf-8")
    for notice in ("Gunther Cox", "KlusAI Labs", "TinyTorch Contributors"):
        assert re.search(rf"Copyright.*{notice}", credits_), notice


def test_the_block_size_travels_in_the_file(model):
    assert model.identity.policy == "moba"
    assert model.identity.policy_options == {"moba_chunk_size": 64, "moba_topk": 3}


@pytest.mark.parametrize("case", PINNED["greedy"], ids=lambda case: case["prompt"][:40])
def test_greedy_continuations_are_pinned(model, case):
    assert measure.greedy(model, case["prompt"], len(case["tokens"])) == case["tokens"]


def test_held_out_text_costs_no_more_than_it_did(bits):
    assert bits <= 1.01 * PINNED["bits_per_byte"]["int8"]


def test_int8_costs_at_most_one_percent_of_perplexity(bits):
    """Per byte: (perplexity of int8) / (perplexity of float32) = 2 ** (difference in bits)."""
    assert 2 ** (bits - PINNED["bits_per_byte"]["fp32"]) <= 1.01


def test_simple_questions_are_answered(model):
    answers = measure.answers(model, measure.PROMPTS["questions"])
    assert sum(answer["right"] for answer in answers) >= 8, answers


def test_a_story_is_told_and_ends(model):
    session = model.session()
    session.feed("User: Tell me a story about a cat named Max.\n\nAssistant:")
    story = session.stream(max_tokens=500, temperature=0.0)
    text = "".join(piece.text for piece in story)
    assert story.reason == "eos"
    assert text.count("Max") >= 3
    assert text.count(".") >= 5
