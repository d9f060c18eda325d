"""``wkvm chat`` as people meet it: over a pipe, and in a terminal."""

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import vocabularies

import wkvm
from wkvm.cli import lines
from wkvm.cli.dialogue import COMMANDS, Dialogue
from wkvm.errors import InvalidArgumentError, UnsupportedError
from wkvm.formats.convert import convert_checkpoint
from wkvm.hypervisor.conversation import Conversation

# The program; the model never ends a text itself, so only a limit or Ctrl-C does.
ENDLESS = """
from dataclasses import replace
from wkvm.hypervisor import conversation
begin = conversation.Conversation.next_sampler
def next_sampler(self):
    self.sampling = replace(self.sampling, banned=(0,))
    return begin(self)
conversation.Conversation.next_sampler = next_sampler
from wkvm.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def file(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    vocabulary = vocabularies.write_small(folder / "vocabulary.txt")
    convert_checkpoint(
        checkpoint("x128-6p2"), folder / "model.safetensors", dtype="fp32", vocab=vocabulary
    )
    return folder / "model.safetensors"


@pytest.fixture(scope="module")
def model(file):
    return wkvm.load(file, n_slots=2)


def chat(file, *arguments, said):
    fixed = ("chat", "--model", file, "--seed", "3", "--max-tokens", "9", "--threads", "1")
    return subprocess.run(
        [sys.executable, "-m", "wkvm", *fixed, *arguments],
        input=said.encode(errors="surrogateescape"),
        capture_output=True,
        env=os.environ,
        timeout=120,
        check=False,
    )


def conversation_of(model, *questions, **options):
    conversation = Conversation(
        model, max_tokens=9, sampling=wkvm.SamplingOptions(seed=3), **options
    )
    for question in questions:
        list(conversation.ask(question))
    return conversation


def answers(conversation):
    return [node.turn.answer for node in conversation.nodes]


# ---- over a pipe


def test_every_line_of_a_pipe_is_answered_on_a_line(file, model):
    finished = chat(file, said="Hi\n\nHo\n")
    assert finished.returncode == 0
    expected = "".join(f"{answer}\n" for answer in answers(conversation_of(model, "Hi", "Ho")))
    assert finished.stdout.decode() == expected
    assert set(finished.stderr.decode().splitlines()) <= {
        "note: the answer was cut at its limit (--max-tokens)"
    }


def test_options_reach_the_conversation(file, model):
    finished = chat(file, "--system", "S", "--think", "on", "--stop", "e", said="Hi\n")
    conversation = conversation_of(model, "Hi", system="S", thinking="on", stop=["e"])
    turn = conversation.nodes[0].turn
    shown = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    assert finished.stdout.decode().strip() == (shown + turn.answer).strip()
    assert turn.said


def test_commands_on_a_pipe_do_what_they_say(file, tmp_path):
    said = [
        "Hi", "/stats", "/again", "/edit 1 Ho", "/branch", "Hu", "/undo", "/branch 1", "/system S",
        "/think fast", "/history", f"/save {tmp_path / 'talk'}", f"/load {tmp_path / 'talk'}",
        f"/save {tmp_path / 'talk'}", "/help", "/exit", "not read",
    ]  # fmt: skip
    finished = chat(file, said="\n".join(said))
    text = finished.stderr.decode()
    assert finished.returncode == 0, text
    assert len(finished.stdout.decode(errors="replace").splitlines()) >= 4
    for expected in (
        r"branch +1 of 1, turns: 1",
        r"last prompt +\d+ tokens in [\d.]+ s",
        r"last answer +9 tokens in [\d.]+ s, [\d.]+ tokens/s",
        r"state +[\d,]+ bytes after \d+ tokens",
        r"branch 2 of 2",
        r"took back turn 2: Hu",
        r"branch 1 of 2",
        r"system: S",
        r"thinking: fast",
        r"1> Ho\n",
        r"saved .*talk and .*talk\.json",
    ):
        assert re.search(expected, text), expected
    for command in COMMANDS:
        assert f"/{command}" in text
    assert [t["user"] for t in json.loads((tmp_path / "talk.json").read_text())["turns"]] == ["Ho"]


def test_a_saved_conversation_is_gone_on_with(file, model, tmp_path):
    chat(file, said=f"Hi\n/save {tmp_path / 'talk'}\n")
    finished = chat(file, "--load", tmp_path / "talk", said="Ho\n")
    loaded = Conversation.load(
        tmp_path / "talk", model, max_tokens=9, sampling=wkvm.SamplingOptions(seed=3)
    )
    list(loaded.ask("Ho"))
    assert finished.stdout.decode() == loaded.nodes[-1].turn.answer + "\n"


def test_a_branch_does_not_replace_what_another_one_saved(file, tmp_path):
    talk = tmp_path / "talk"
    finished = chat(file, said=f"Hi\n/save {talk}\n/branch\nHo\n/save {talk}\n")
    assert finished.returncode == 1
    assert b"exists" in finished.stderr
    assert [t["user"] for t in json.loads((tmp_path / "talk.json").read_text())["turns"]] == ["Hi"]


def test_a_system_text_beside_load_replaces_the_saved_one(file, tmp_path):
    chat(file, "--system", "A", said=f"Hi\n/save {tmp_path / 'talk'}\n")
    chat(file, "--load", tmp_path / "talk", "--system", "B", said=f"Ho\n/save {tmp_path / 'new'}\n")
    assert json.loads((tmp_path / "new.json").read_text())["system"] == "B"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("/nothing\n", "there is no command /nothing: /help lists them"),
        ("/undo\n", "there is no turn yet"),
        ("/undo now\n", "the command is: /undo"),
        ("/think\n", "the command is: /think off|fast|on"),
        ("/think hard\n", "thinking is 'hard'"),
        ("/edit 1\n", "there is no turn '1'"),
        ("/edit x y\n", "there is no turn 'x'"),
        ("/edit \u00b2 y\n", "there is no turn"),
        ("/branch 9999999999999999999999\n", "there is no branch"),
        ("/branch 0000000019\n", "there is no branch"),
        ("/load ~no-such-user/talk\n", "is no path"),
        ("/save /nowhere/talk\n", "there is no turn yet"),
        ("/load /nowhere/talk\n", "cannot read /nowhere/talk.json"),
        ("a\udcff\n", "line 1 of standard input is not UTF-8"),
    ],
)
def test_an_error_on_a_pipe_ends_the_program(file, said, message):
    finished = chat(file, said=said)
    assert finished.returncode == 1
    assert finished.stderr.decode().count("\n") == 1
    assert finished.stderr.decode().startswith("error: ")
    assert message in finished.stderr.decode()


def test_a_template_file_is_used(file, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages[-1].content }}{{ 1 / 0 }}")
    finished = chat(file, "--template", tmp_path / "t.jinja", said="Hi\n")
    assert finished.returncode == 1
    assert b"error: the chat template failed: division by zero" in finished.stderr
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }};{% endfor %}")
    finished = chat(file, "--template", tmp_path / "t.jinja", said="Hi\n/stats\n")
    assert b"template     jinja:" in finished.stderr


@pytest.mark.parametrize(
    ("package", "template"), [("jinja2", os.devnull), ("prompt_toolkit", None)]
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(package, template, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: package != "jinja2"))
    from wkvm.cli.chat import chat

    with pytest.raises(UnsupportedError, match=rf"{package}.*wkvm\[chat\]"):
        chat(template=template)


# ---- how an answer is shown


class Said:
    """Lines that a test types."""

    is_terminal = True

    def __init__(self, *said):
        self._said = iter(said)
        self.defaults = []

    def read(self, prompt, default=""):
        self.defaults.append(default)
        line = next(self._said, None)
        if line is None:
            raise EOFError
        if isinstance(line, BaseException):
            raise line
        return line


class Script:
    def __init__(self, text):
        self._tokens = iter([byte + 1 for byte in text.encode()])

    def sample(self, logits):
        return next(self._tokens, 0)

    def accept(self, token):
        pass


def shown(model, monkeypatch, answer, *said, is_terminal, thinking="on"):
    """What a dialogue writes to standard output."""
    conversation = Conversation(model, thinking=thinking)
    monkeypatch.setattr(conversation, "next_sampler", lambda: Script(answer), raising=False)
    output = SimpleNamespace(buffer=io.BytesIO(), isatty=lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", output)
    typed = Said(*said)
    Dialogue(conversation, lambda path: conversation, typed).run()
    return output.buffer.getvalue().decode(), conversation, typed


ANSWER = ">\nOne and one.\n</think>\n\n2 \x1b[2J"


def test_reasoning_is_dimmed_in_a_terminal_and_tagged_elsewhere(model, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    text, _, _ = shown(model, monkeypatch, ANSWER, "1+1?", is_terminal=True)
    assert text == "\033[2mOne and one.\033[0m\n\n2 \ufffd[2J\n"  # no controls in a terminal
    text, _, _ = shown(model, monkeypatch, ANSWER, "1+1?", is_terminal=False)
    assert text == "<think>\nOne and one.\n</think>\n\n2 \x1b[2J\n"
    monkeypatch.setenv("NO_COLOR", "1")
    text, _, _ = shown(model, monkeypatch, ANSWER, "1+1?", is_terminal=True)
    assert text == "<think>\nOne and one.\n</think>\n\n2 \ufffd[2J\n"


def test_a_terminal_survives_errors_and_interrupts(model, monkeypatch, capsys):
    said = ["/nothing", KeyboardInterrupt(), "Hi", "/undo", "/undo", "Ho"]
    text, conversation, _ = shown(
        model, monkeypatch, " Yes.", *said, is_terminal=False, thinking="off"
    )
    assert text == "Yes.\nYes.\n"
    assert [node.turn.user for node in conversation.nodes] == ["Ho"]
    assert capsys.readouterr().err.count("error: ") == 2


def test_an_edited_turn_is_offered_for_editing(model, monkeypatch):
    said = ["Hi", "Ho", "/edit 1", "Hi there"]
    _, conversation, typed = shown(
        model, monkeypatch, " Yes.", *said, is_terminal=False, thinking="off"
    )
    assert [node.turn.user for node in conversation.nodes] == ["Hi there"]
    assert typed.defaults == ["", "", "", "Hi", ""]


def test_two_slashes_begin_a_message_with_one(model, monkeypatch):
    _, conversation, _ = shown(model, monkeypatch, " Yes.", "//etc is?", is_terminal=False)
    assert conversation.nodes[0].turn.user == "/etc is?"


def test_every_command_has_its_method():
    assert all(callable(getattr(Dialogue, f"_{name}")) for name in COMMANDS)


# ---- in a terminal


class Terminal:
    """The program with a terminal, in which a test types."""

    def __init__(self, folder, *arguments):
        environment = {
            **os.environ,
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XDG_STATE_HOME": str(folder),
        }
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [sys.executable, "-c", ENDLESS, *arguments], environment)
        self._seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def type(self, text):
        self._seen = b""
        os.write(self._fd, text.encode())

    def wait_for(self, pattern):
        """Read until the pattern has come; give everything since the last typing."""
        deadline = time.monotonic() + 100
        while not re.search(pattern, self._seen):
            assert time.monotonic() < deadline, self._seen
            if select.select([self._fd], [], [], 1)[0]:
                self._seen += os.read(self._fd, 1 << 16)
        return self._seen

    def status(self):
        """The exit status, once what is left of the output has come."""
        with contextlib.suppress(OSError):  # the other end is closed
            self.wait_for(rb"(?!)")
        status = os.waitpid(self._pid, 0)[1]
        self._pid = 0
        return os.waitstatus_to_exitcode(status)


PROMPT = rb"%d>(?:\x1b\[[\d;]*[a-zA-Z])* ?"


def test_ctrl_c_stops_the_answer_and_not_the_program(file, tmp_path):
    arguments = ("chat", "--model", str(file), "--seed", "3", "--threads", "1")
    with Terminal(tmp_path, *arguments) as terminal:
        terminal.wait_for(PROMPT % 1)
        terminal.type("Hi\r")
        terminal.wait_for(rb"Hi\x1b.*\n(?s:.){600}")  # an answer runs
        terminal.type("\x03")
        terminal.wait_for(rb"note: interrupted; what there is of it stays(?s:.*)" + PROMPT % 2)
        terminal.type("/stats\r")
        assert b"turns: 1\r\n" in terminal.wait_for(rb"states kept(?s:.*)" + PROMPT % 2)
        terminal.type("never mind\x03")  # at the prompt, it clears the line
        terminal.wait_for(rb"never mind(?s:.*)\n(?s:.*)" + PROMPT % 2)
        terminal.type("/again\r")
        terminal.wait_for(rb"again\x1b.*\n(?s:.){600}")
        terminal.type("\x03")
        terminal.wait_for(rb"note: interrupted(?s:.*)" + PROMPT % 2)
        terminal.type("/nothing\r")
        terminal.wait_for(rb"error: there is no command /nothing(?s:.*)" + PROMPT % 2)
        terminal.type("\x04")
        assert terminal.status() == 0
    history = tmp_path / "wkvm" / "chat_history"
    assert "+/again" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o077 == 0


def test_a_history_that_cannot_be_written_is_said_to_be_none(monkeypatch, tmp_path, capsys):
    (tmp_path / "wkvm").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert lines._history_file() is None
    assert "note: no history: cannot write" in capsys.readouterr().err


def test_refused_arguments_say_what_the_command_is(model):
    dialogue = Dialogue(Conversation(model), lambda path: None, Said())
    with pytest.raises(InvalidArgumentError, match=r"the command is: /save FILE"):
        dialogue._take("/save")
