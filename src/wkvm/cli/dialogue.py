"""The loop of ``wkvm chat``: messages to answers, and the commands that begin with a slash."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from wkvm.cli.lines import Lines
from wkvm.cli.terminal import interruptible
from wkvm.errors import FileError, InvalidArgumentError, WkvmError
from wkvm.hypervisor.conversation import Answer, Conversation
from wkvm.text.template import Thinking

#: Command -> its arguments and what it does. /NAME is the method NAME of Dialogue.
COMMANDS = {
    "undo": ("", "take the last turn back"),
    "again": ("", "another answer to the last question"),
    "edit": ("N [TEXT]", "ask turn N anew, and drop what follows it"),
    "branch": ("[N]", "go on in a copy of the conversation, or in branch N"),
    "history": ("", "print the turns"),
    "system": ("[TEXT]", "set or remove the system text; the next turn reads everything again"),
    "think": ("off|fast|on", "whether answers begin with reasoning"),
    "save": ("FILE", "write the state to FILE, and the turns to FILE.json"),
    "load": ("FILE", "go on with a saved conversation, as a new branch"),
    "stats": ("", "print speed and the size of the state"),
    "help": ("", "print this"),
    "exit": ("", "end the program; so does Ctrl-D"),
}
_OTHER_NAMES = {"regenerate": "again", "speed": "stats", "quit": "exit"}
_DIM, _PLAIN = "\033[2m", "\033[0m"
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]")
_NOTES = {
    "length": "the answer was cut at its limit (--max-tokens)",
    "full": "the KV cache is full (--max-cache-len): undo a turn, or begin another conversation",
    "interrupted": "interrupted; what there is of it stays in the conversation",
}


class Dialogue:
    """A person, a model, and the branches of their conversation."""

    def __init__(
        self, conversation: Conversation, load: Callable[[Path], Conversation], lines: Lines
    ) -> None:
        """A dialogue that reads from `lines`; `load` opens a saved conversation."""
        self._branches = [conversation]
        self._current = 0
        self._open = load
        self._lines = lines
        self._own_files: dict[Path, Conversation] = {}
        self._is_shown = sys.stdout.isatty()
        self._is_coloured = self._is_shown and not os.environ.get("NO_COLOR")

    @property
    def _conversation(self) -> Conversation:
        return self._branches[self._current]

    def run(self) -> None:
        """Answer until the lines end. In a terminal, an error ends only what it is about.

        Raises:
            WkvmError: as ``Conversation``, if the lines come from a pipe.
        """
        while True:
            try:
                line = self._lines.read(f"{len(self._conversation.nodes) + 1}> ")
                self._take(line)
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self._lines.is_terminal:
                    raise
            except WkvmError as error:
                if not self._lines.is_terminal:
                    raise
                _say("error: " + " ".join(str(error).split()))

    def _take(self, line: str) -> None:
        """Ask, or do what a command says. Two slashes begin a message with one."""
        if not line.strip():
            return
        if not line.startswith("/") or line.startswith("//"):
            self._show(self._conversation.ask(line.removeprefix("/")))
            return
        name, _, argument = line[1:].strip().partition(" ")
        name = _OTHER_NAMES.get(name, name)
        if name not in COMMANDS:
            raise InvalidArgumentError(f"there is no command /{name}: /help lists them")
        takes = COMMANDS[name][0]
        argument = argument.strip()
        is_needed = takes != "" and not takes.startswith("[")
        if (is_needed and not argument) or (argument and not takes):
            raise InvalidArgumentError(f"the command is: /{name} {takes}".rstrip())
        getattr(self, f"_{name}")(argument)

    def _show(self, answer: Answer) -> None:
        """Print an answer as it comes: its reasoning apart, dimmed or between its tags."""
        was_reasoning = False
        begin, end = (_DIM, _PLAIN) if self._is_coloured else ("<think>\n", "\n</think>")
        try:
            with interruptible(answer.interrupt):
                for text, is_reasoning in answer:
                    if is_reasoning and not was_reasoning:
                        _write(begin)
                    if was_reasoning and not is_reasoning:
                        _write(end + "\n\n")
                    was_reasoning = is_reasoning
                    _write(_CONTROLS.sub("\ufffd", text) if self._is_shown else text)
        finally:
            _write((end if was_reasoning else "") + "\n")
        if answer.node is None:
            _say("note: interrupted before the answer began; nothing has changed")
        elif answer.node.turn.end in _NOTES:
            _say(f"note: {_NOTES[answer.node.turn.end]}")

    # ---- the commands

    def _undo(self, _: str) -> None:
        turn = self._conversation.undo()
        _say(f"took back turn {len(self._conversation.nodes) + 1}: {_line(turn.user)}")

    def _again(self, _: str) -> None:
        self._show(self._conversation.again())

    def _edit(self, argument: str) -> None:
        number, _, message = argument.partition(" ")
        place = _number(number, "turn", len(self._conversation.nodes))
        if not message.strip():
            if not self._lines.is_terminal:
                raise InvalidArgumentError("say what to ask instead: /edit N TEXT")
            message = self._lines.read(f"{place}> ", self._conversation.nodes[place - 1].turn.user)
        self._show(self._conversation.edit(place, message))

    def _branch(self, argument: str) -> None:
        if argument:
            self._current = _number(argument, "branch", len(self._branches)) - 1
        else:
            self._add_branch(self._conversation.branch())
        _say(f"branch {self._current + 1} of {len(self._branches)}; /branch N changes")

    def _add_branch(self, conversation: Conversation) -> None:
        self._branches.append(conversation)
        self._current = len(self._branches) - 1

    def _history(self, _: str) -> None:
        for number, node in enumerate(self._conversation.nodes, 1):
            _say(f"{number}> {node.turn.user}\n{node.turn.answer}")

    def _system(self, argument: str) -> None:
        self._conversation.system = argument
        _say(f"system: {self._conversation.system or '(none)'}")

    def _think(self, argument: str) -> None:
        self._conversation.thinking = cast(Thinking, argument)
        _say(f"thinking: {argument}")

    def _save(self, argument: str) -> None:
        file = _file(argument)
        self._conversation.save(file, overwrite=self._own_files.get(file) is self._conversation)
        self._own_files[file] = self._conversation
        _say(f"saved {file} and {file}.json")

    def _load(self, argument: str) -> None:
        file = _file(argument)
        self._add_branch(self._open(file))
        self._own_files[file] = self._conversation
        self._history("")

    def _stats(self, _: str) -> None:
        _say(_stats_text(self._branches, self._current))

    def _help(self, _: str) -> None:
        rows = [(f"/{name} {takes}".rstrip(), text) for name, (takes, text) in COMMANDS.items()]
        width = max(len(usage) for usage, _ in rows)
        _say("\n".join(f"{usage:<{width}}  {text}" for usage, text in rows))

    def _exit(self, _: str) -> None:
        raise EOFError


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _say(text: str) -> None:
    """Print what is no answer, on standard error."""
    shown = _CONTROLS.sub("\ufffd", text) if sys.stderr.isatty() else text
    print(shown, file=sys.stderr)


def _line(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _file(argument: str) -> Path:
    """The file that a command names."""
    try:
        return Path(argument).expanduser().absolute()
    except (OSError, RuntimeError) as error:  # no such user, no such folder any more
        raise FileError(f"{argument!r} is no path: {error}") from error


def _number(text: str, what: str, n: int) -> int:
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= n:
        raise InvalidArgumentError(f"there is no {what} {text!r}: there are {n}, from 1")
    return int(text)


def _stats_text(branches: list[Conversation], current: int) -> str:
    """Speed and sizes, a line each."""
    conversation = branches[current]
    states = {
        node.after.id: sum(array.nbytes for array in node.after.state.values())
        for branch in branches
        for node in branch.nodes
        if node.after is not None
    }
    lines = {
        "branch": f"{current + 1} of {len(branches)}, turns: {len(conversation.nodes)}",
        "template": f"{conversation.template.name[:20]}, thinking: {conversation.thinking}",
    }
    if conversation.nodes:
        node = conversation.nodes[-1]
        cost = node.cost
        lines["last prompt"] = _speed(cost.prompt_tokens, cost.prompt_seconds)
        lines["last answer"] = _speed(cost.answer_tokens, cost.answer_seconds)
        if node.after is not None:
            lines["state"] = (
                f"{states[node.after.id]:,} bytes after {len(node.after.tokens):,} tokens"
            )
        lines["states kept"] = f"{len(states)}, {sum(states.values()):,} bytes"
    return "\n".join(f"{name:<11}  {value}" for name, value in lines.items())


def _speed(n: int, seconds: float) -> str:
    rate = f", {n / seconds:.1f} tokens/s" if n and seconds else ""
    return f"{n} tokens in {seconds:.3f} s{rate}"
