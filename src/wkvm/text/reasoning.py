"""An answer in its two parts: the thoughts between ``<think>`` and ``</think>``, and the rest."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_OPEN, _CLOSE = "<think>", "</think>"
_OPENED = re.compile(rb"<think(?:>\s*(?:</think(?:>\s*)?)?)?\Z")


def opened(prompt: bytes) -> str:
    """The beginning of the thoughts with which a prompt ends, or nothing."""
    match = _OPENED.search(prompt)
    return match[0].decode() if match else ""


class Part(NamedTuple):
    """A piece of an answer's text; never empty."""

    text: str
    is_reasoning: bool


def joined(parts: Iterable[Part]) -> tuple[str, str]:
    """The thoughts and the answer in one piece each."""
    pieces: tuple[list[str], list[str]] = [], []
    for part in parts:
        pieces[not part.is_reasoning].append(part.text)
    return "".join(pieces[0]), "".join(pieces[1])


def split(said: bytes, opening: str) -> tuple[str, str]:
    """The thoughts and the answer in all that was said after an opening."""
    splitter = ReasoningSplitter(opening)
    parts = splitter.push(said.decode(errors="replace"))
    return joined(parts + splitter.finish())


class ReasoningSplitter:
    """Tells the thoughts from the answer, however the text is cut.

    Each comes without the tags and without the blanks around it; those at the very end are for
    ``AnswerBytes`` to trim. Only an answer that begins with ``<think>`` has thoughts.
    """

    def __init__(self, opening: str) -> None:
        """A splitter that has seen the end of the prompt, which ``opened`` gives."""
        self._opening = self._held = opening
        self._is_open: bool | None = None  # None: the text has not begun yet
        self._has_begun = False  # the part has shown something

    def push(self, text: str) -> list[Part]:
        """Take the next text; give what has become certain."""
        if not text:
            return []
        self._held += text
        parts: list[Part] = []
        if self._is_open is None:
            self._held = self._held.lstrip()
            if _OPEN.startswith(self._held) and self._held != _OPEN:
                return parts
            self._is_open = self._held.startswith(_OPEN)
            if self._is_open:
                self._held = self._held.removeprefix(_OPEN)
        if self._is_open:
            thoughts, tag, rest = self._held.partition(_CLOSE)
            if tag:
                self._show(thoughts.rstrip(), parts)
                self._is_open, self._has_begun, self._held = False, False, rest
            else:
                certain = len(_without_part_of(_CLOSE, self._held).rstrip())
                self._held, thoughts = self._held[certain:], self._held[:certain]
                self._show(thoughts, parts)
        if not self._is_open:
            self._show(self._held, parts)
            self._held = ""
        return parts

    def finish(self) -> list[Part]:
        """End the text; give what was held back."""
        parts: list[Part] = []
        if self._held != self._opening:  # which the model has not said
            self._show(self._held.rstrip(), parts)
        self._held = ""
        return parts

    def _show(self, text: str, parts: list[Part]) -> None:
        """Append the text as a part, without the blanks before its first character."""
        text = text if self._has_begun else text.lstrip()
        if text:
            self._has_begun = True
            parts.append(Part(text, bool(self._is_open)))


def _without_part_of(tag: str, text: str) -> str:
    """The text without what may still become the tag at its end."""
    for n in range(len(tag) - 1, 0, -1):
        if text.endswith(tag[:n]):
            return text[:-n]
    return text
