"""Chat templates in Jinja, as Hugging Face's models come with them.

They come from strangers, so they run in Jinja's sandbox, which reaches neither files nor modules,
and how much they may print is limited. Their time and memory are not: Ctrl-C ends one that does not
end.
"""

import hashlib
from collections.abc import Sequence
from os import PathLike
from typing import Any, NoReturn

from wkvm.errors import FileError, FormatError, UnsupportedError
from wkvm.text.template import Thinking, Turn

_MAX_SOURCE = 1 << 20  # bytes
_MAX_PROMPT = 1 << 26  # characters
_MARKS = "\ue000wkvm\ue000", "\ue001wkvm\ue001", "\ue002wkvm\ue002"  # no template has such text


class JinjaTemplate:
    """A template file.

    It sees ``messages`` with ``role``, ``content`` and, if there was any, ``reasoning_content``;
    ``add_generation_prompt``, ``enable_thinking`` (true for "on"), ``thinking`` (the mode),
    ``bos_token`` and ``eos_token`` (both empty), and ``raise_exception``.

    Attributes:
        name: ``jinja:`` and the SHA-256 of the source.
        stop: what the template puts between an answer and what follows: the text after the last
            answer, or if that is blank, the text up to the next question.
    """

    def __init__(self, source: str) -> None:
        """Compile a template.

        Raises:
            FormatError: it has an error, or is larger than 1 MiB.
            UnsupportedError: the package jinja2 is not installed.
        """
        try:
            import jinja2  # noqa: PLC0415 -- optional, and slow
            from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
        except ImportError as error:
            raise UnsupportedError(
                "a chat template needs the package jinja2: pip install 'wkvm[chat]'"
            ) from error

        class Environment(ImmutableSandboxedEnvironment):
            """Refuses the operators that make gigabytes from a line."""

            intercepted_binops = frozenset(["*", "**", "%"])

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                for value in (left, right):
                    if not isinstance(value, int | float) or abs(value) > 1 << 32:
                        raise jinja2.exceptions.SecurityError(f"{operator} is for small numbers")
                if operator == "**" and abs(right) > 64:
                    raise jinja2.exceptions.SecurityError("the power is larger than 64")
                return super().call_binop(context, operator, left, right)

        def raise_exception(message: str) -> NoReturn:
            raise jinja2.exceptions.TemplateError(message)

        if len(source.encode()) > _MAX_SOURCE:
            raise FormatError("the chat template is larger than 1 MiB: name another file")
        environment = Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = raise_exception
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # Jinja compiles Python, which has limits of its own
            raise FormatError(f"the chat template is broken: {_why(error)}") from error
        self.name = f"jinja:{hashlib.sha256(source.encode()).hexdigest()}"
        self.stop = self._derive_stop()

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> "JinjaTemplate":
        """Read a template.

        Raises:
            FileError: it cannot be read.
            FormatError: it is not UTF-8, has an error, or is larger than 1 MiB.
            UnsupportedError: the package jinja2 is not installed.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_SOURCE + 1)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
        try:
            return cls(data.decode())
        except UnicodeDecodeError as error:
            raise FormatError(f"{path} is not UTF-8 at offset {error.start}") from error

    def clean(self, text: str) -> str:
        r"""Without blanks around it, ``\r\n`` made ``\n``; the rest is for the template."""
        return text.replace("\r\n", "\n").strip()

    def prompt(self, system: str, turns: Sequence[Turn], user: str, thinking: Thinking) -> bytes:
        """What the template makes of the conversation.

        Raises:
            FormatError: it fails, or makes more than 64 Mi characters of it.
        """
        messages = [{"role": "system", "content": system}] if system else []
        for turn in turns:
            messages.append({"role": "user", "content": turn.user})
            answer = {"role": "assistant", "content": turn.answer}
            if turn.reasoning:
                answer["reasoning_content"] = turn.reasoning
            messages.append(answer)
        messages.append({"role": "user", "content": user})
        return self._render(messages, thinking, is_open=True).encode(errors="replace")

    def _derive_stop(self) -> tuple[str, ...]:
        first, answer, second = _MARKS
        messages = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": answer},
        ]
        after = self._render(messages, "off", is_open=False).partition(answer)[2].strip()
        if after:
            return (after,)
        messages.append({"role": "user", "content": second})
        between = self._render(messages, "off", is_open=False).partition(answer)[2]
        between = between.partition(second)[0].rstrip()
        return (between,) if between else ()

    def _render(self, messages: list[dict[str, str]], thinking: Thinking, *, is_open: bool) -> str:
        pieces, n_chars = [], 0
        try:
            for piece in self._template.generate(
                messages=messages,
                add_generation_prompt=is_open,
                enable_thinking=thinking == "on",
                thinking=thinking,
                bos_token="",
                eos_token="",
            ):
                pieces.append(piece)
                n_chars += len(piece)
                if n_chars > _MAX_PROMPT:
                    raise FormatError("the chat template makes a prompt of more than 64 Mi chars")
        except FormatError:
            raise
        except Exception as error:  # whatever a stranger's code may raise
            raise FormatError(f"the chat template failed: {_why(error)}") from error
        return "".join(pieces)


def _why(error: BaseException) -> str:
    """One short line of what Jinja says, with the line of the template if it knows."""
    line = getattr(error, "lineno", None)
    said = "".join(c if c.isprintable() else " " for c in str(error))  # a stranger's words
    text = " ".join(said.split()) or type(error).__name__
    return text[:200] + (f" (line {line})" if line else "")
