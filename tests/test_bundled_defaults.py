"""Nobody names a model: the bundled one is used and said to be, here with another in its place."""

import json
import os
import re
import subprocess
import sys

import pytest
import vocabularies
from conftest import ROOT

import wkvm
from wkvm import bundled
from wkvm.errors import FileError
from wkvm.formats.convert import convert_checkpoint
from wkvm.text.chat import NEXT_TURN, is_chat, with_line_breaks

PROMPT = "Once upon a time"
CHAT = "User: What color is the sky?\n\nAssistant:"
TYPED = CHAT.replace("\n", r"\n")
NOTE = (
    b"note: using the bundled demonstration model (2M parameters); name a real one with --model "
    b"FILE\n"
)
TYPED_NOTE = rb"note: took each \n\n before a turn for line breaks" + b"\n"
NEXT = 300  # the token whose text is NEXT_TURN

# The program, with another model in the place of the bundled one.
PROGRAM = """
import sys
from pathlib import Path
from wkvm import bundled
bundled._PATH = Path(sys.argv.pop(1))
from wkvm.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def story(checkpoint, tmp_path_factory):
    """A converted model with attention, a vocabulary, and a block size of its own."""
    folder = tmp_path_factory.mktemp("story")
    vocabulary = vocabularies.write_small(folder / "vocabulary.txt")
    lines = vocabulary.read_text().splitlines()
    lines[NEXT - 1] = f"{NEXT} {NEXT_TURN!r} {len(NEXT_TURN)}"
    vocabulary.write_text("\n".join(lines) + "\n")
    convert_checkpoint(
        checkpoint("x128-6p2"),
        folder / "story.safetensors",
        dtype="int8",
        vocab=vocabulary,
        policy={"moba_chunk_size": 16, "moba_topk": 2},
    )
    return folder / "story.safetensors"


@pytest.fixture
def in_its_place(story, monkeypatch):
    monkeypatch.setattr(bundled, "_PATH", story)
    return story


@pytest.fixture
def missing(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "_PATH", tmp_path / "missing.safetensors")
    return tmp_path / "missing.safetensors"


def run(path, *arguments, stdin=b""):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, path, *arguments],
        input=stdin,
        capture_output=True,
        env=os.environ,
        timeout=120,
        check=False,
    )


def generated(path, *arguments, stdin=b"", note=NOTE):
    """What generate says of itself; on standard error it must say `note` and nothing else."""
    fixed = ("--seed", "7", "--max-tokens", "20", "--json")
    finished = run(path, "generate", *fixed, *arguments, stdin=stdin)
    assert (finished.returncode, finished.stderr) == (0, note)
    return json.loads(finished.stdout)


# ---- Python


def test_a_model_without_a_name_is_the_bundled_one(in_its_place):
    assert wkvm.bundled_model_path() == in_its_place
    model = wkvm.load()
    assert model.fingerprint == wkvm.load(in_its_place).fingerprint
    assert model.identity.policy_options == {"moba_chunk_size": 16, "moba_topk": 2}
    session = model.session()
    session.feed(PROMPT)
    assert len(list(session.stream(5, seed=1))) == 5


def test_a_bundled_model_that_is_missing_says_where_and_what_to_do(missing):
    for call in (wkvm.bundled_model_path, wkvm.load):
        with pytest.raises(FileError, match=rf"\({re.escape(str(missing))}\): reinstall wkvm"):
            call()
    finished = run(missing, "generate", PROMPT)
    assert (finished.returncode, finished.stdout) == (1, b"")
    assert re.fullmatch(rb"error: the bundled model is missing [^\n]*\n", finished.stderr)


def test_the_installation_has_the_bundled_model_and_its_card():
    path = wkvm.bundled_model_path()
    assert wkvm.load().info["dtype"] == "int8"
    assert path.with_name("MODEL_CARD.md").read_text().startswith("# ")


# ---- generate


def test_generate_says_that_it_uses_the_bundled_model(story):
    finished = run(story, "generate", PROMPT, "--seed", "7", "--max-tokens", "20")
    assert (finished.returncode, finished.stderr) == (0, NOTE)
    assert finished.stdout.decode() == generated(story, PROMPT)["text"]
    named = run(story, "generate", PROMPT, "--model", story, "--max-tokens", "20")
    assert (named.returncode, named.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("", {}),
        ("--temperature 1.5", {"temperature": 1.5}),
        ("--presence-penalty 2 --top-p 1", {"presence_penalty": 2.0, "top_p": 1.0}),
    ],
)
def test_the_bundled_model_has_defaults_of_its_own(in_its_place, flags, changes):
    session = wkvm.load().session()
    session.feed(PROMPT)
    pieces = session.stream(20, seed=7, **(bundled.SAMPLING | changes))
    tokens = [piece.token for piece in pieces if piece.token is not None]
    assert generated(in_its_place, PROMPT, *flags.split())["tokens"] == tokens


@pytest.mark.parametrize("flags", [[], ["--order", "openai"]])
def test_those_defaults_are_of_no_other_model_or_order(in_its_place, flags):
    session = wkvm.load().session()
    session.feed(PROMPT)
    options = wkvm.SamplingOptions.openai() if flags else wkvm.SamplingOptions()
    names = ("order", "top_p", "penalty_decay", *bundled.SAMPLING)
    pieces = session.stream(20, seed=7, **{name: getattr(options, name) for name in names})
    tokens = [piece.token for piece in pieces if piece.token is not None]
    named, note = ([], NOTE) if flags else (["--model", in_its_place], b"")
    assert generated(in_its_place, PROMPT, *flags, *named, note=note)["tokens"] == tokens


# ---- chats


def test_an_answer_ends_where_the_user_s_next_turn_begins(story):
    next_turn = ("--logit-bias", f"{NEXT}=1000")
    result = generated(story, CHAT, *next_turn)
    assert (result["text"], result["reason"], result["stop"]) == ("", "stop", NEXT_TURN)
    for prompt, named in ((PROMPT, ()), (CHAT, ("--stop", "never said"))):
        result = generated(story, prompt, *next_turn, *named)
        assert (result["text"], result["reason"]) == (NEXT_TURN * 20, "length")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (CHAT, True),
        (CHAT + " Blue.\n\nUser: Why?\n\nAssistant:", True),
        ("System: Be short.\n\n" + CHAT, True),
        (CHAT + " <think", True),
        (PROMPT, False),
        ("", False),
        ("User: Hi", False),
        ("Assistant: Hi", False),
        ("User: Hi\nAssistant:", False),
        ("Assistant: Hi\n\nUser: Ho", False),
        ("The User: Hi\n\nAssistant:", False),
    ],
)
def test_a_chat_is_a_question_and_the_beginning_of_an_answer(prompt, expected):
    assert is_chat(prompt) is expected


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (TYPED, CHAT),
        (r"System: Be short.\n\n" + TYPED, "System: Be short.\n\n" + CHAT),
        (r"User: print('\n')?\n\nAssistant: Yes.\n\nUser: Why?\n\nAssistant:",
         "User: print('\\n')?\n\nAssistant: Yes.\n\nUser: Why?\n\nAssistant:"),
        (CHAT + TYPED, CHAT + TYPED),  # line breaks that are there, so others are meant as they are
        ("s = '" + TYPED, "s = '" + TYPED),
        (r"User: Hi\nAssistant:", r"User: Hi\nAssistant:"),
        (r"User: a\n\nb", r"User: a\n\nb"),
        (PROMPT, PROMPT),
    ],
)  # fmt: skip
def test_only_a_chat_on_one_line_is_given_line_breaks(typed, meant):
    assert with_line_breaks(typed) == meant


def test_a_chat_that_was_typed_on_one_line_is_read_as_it_is_meant(story, tmp_path):
    expected = generated(story, CHAT)
    assert generated(story, "-", stdin=CHAT.encode())["tokens"] == expected["tokens"]
    for arguments in ([TYPED], ["--prompt", TYPED]):
        result = generated(story, *arguments, note=TYPED_NOTE + NOTE)
        assert result["tokens"] == expected["tokens"]
        assert result["stats"]["prompt_tokens"] == expected["stats"]["prompt_tokens"]
    file = tmp_path / "PROMPT"
    file.write_text(TYPED)
    n_typed = generated(story, "-", stdin=TYPED.encode())["stats"]["prompt_tokens"]
    assert n_typed > expected["stats"]["prompt_tokens"]  # files and streams are taken as they are
    assert generated(story, "--prompt-file", file)["stats"]["prompt_tokens"] == n_typed


# ---- the other commands


def test_info_describes_the_bundled_model(story):
    finished = run(story, "info", "--json")
    assert (finished.returncode, finished.stderr) == (0, NOTE.replace(b"--model FILE", b"FILE"))
    assert json.loads(finished.stdout) == json.loads(run(story, "info", story, "--json").stdout)


def test_the_doctor_tries_the_bundled_model(story, tmp_path):
    facts = json.loads(run(story, "doctor", "--json").stdout)
    assert facts["problems"] == []
    assert facts["bundled_model"] == {
        "path": str(story),
        "file_bytes": story.stat().st_size,
        "n_params": wkvm.load(story).info["n_params"],
        "dtype": "int8",
    }
    assert re.search(
        r"\nbundled model +\d+\.\d MiB, [\d,]+ parameters, int8: loads and runs\n",
        run(story, "doctor").stdout.decode(),
    )
    (tmp_path / "cut").write_bytes(story.read_bytes()[:-1])
    for path in (tmp_path / "missing", tmp_path / "cut"):
        finished = run(path, "doctor")
        assert finished.returncode == 1
        assert re.search(rf"\nerror: [^\n]*{re.escape(str(path))}", finished.stdout.decode())


def test_the_readme_shows_what_its_first_commands_print():
    """Bit for bit the same on every machine, so the text is too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (console,) = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    session = wkvm.load().session()
    session.feed(PROMPT)
    story = "".join(session.generate(max_tokens=400, seed=1, **bundled.SAMPLING))
    assert f'generate "{PROMPT}" --seed 1\n' in console
    assert f"{story}\n$ " in console
    session.reset()
    session.feed("User: What do bees make?\n\nAssistant:")
    answer = "".join(session.generate(max_tokens=400, temperature=0.0, stop=[NEXT_TURN]))
    assert f"{answer}\n$ " in console


def test_a_long_prompt_is_told_from_a_chat_at_once():
    assert not is_chat("\n\nUser: hi" * 200_000)
    assert is_chat("\n\nUser: hi" * 200_000 + "\n\nAssistant:")
