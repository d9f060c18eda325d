"""Text as it is generated: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Iterable

from wkvm.errors import InvalidArgumentError


class TextStream:
    """Turns the bytes of tokens into text, however they are cut.

    Bytes that may still become a character wait for the next ones; what can never be UTF-8
    becomes U+FFFD, as ``bytes.decode`` with ``"replace"`` has it. Text that may still become a
    stop string waits too. All text together is what comes before the first occurrence of any
    stop string; of several that begin at one place, the shortest counts.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    def __init__(self, stop: Iterable[str] = ()) -> None:
        """A stream without text yet.

        Raises:
            InvalidArgumentError: a stop string is empty, or no str; or `stop` is a single one.
        """
        if isinstance(stop, str) or not isinstance(stop, Iterable):
            raise InvalidArgumentError(f"stop is a {type(stop).__name__}; give a list of strings")
        self._patterns = [_Pattern(text) for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # text that may still become a stop string
        self._found: tuple[int, str] | None = None  # the first stop string so far, within _held
        self.matched: str | None = None

    def push(self, data: bytes) -> str:
        """Take the bytes of the next token; give the text that has become certain."""
        return self._take(self._decoder.decode(data))

    def flush(self) -> str:
        """End the text; give what was held back."""
        text = self._take(self._decoder.decode(b"", final=True))
        if self.matched is None:
            end = len(self._held)
            if self._found is not None:
                end, self.matched = self._found
            text += self._held[:end]
            self._held = ""
        return text

    def _take(self, new: str) -> str:
        if self.matched is not None:
            return ""
        if not self._patterns:
            return new
        text = self._held + new
        open_since = 0  # before it nothing can become a stop string any more
        for end in range(len(self._held) + 1, len(text) + 1):
            for pattern in self._patterns:
                if pattern.advance(text[end - 1]):
                    start = end - len(pattern.text)
                    if self._found is None or start < self._found[0]:
                        self._found = start, pattern.text
            open_since = end - max(pattern.n_matched for pattern in self._patterns)
            if self._found is not None and self._found[0] <= open_since:
                start, self.matched = self._found
                return text[:start]
        self._held = text[open_since:]
        if self._found is not None:
            self._found = self._found[0] - open_since, self._found[1]
        return text[:open_since]


class _Pattern:
    """A stop string, and how many of its first characters the text ends with.

    The automaton of Knuth, Morris and Pratt: constant time per character on average.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"a stop string is {text!r}; it must be a str")
        if not text:
            raise InvalidArgumentError("a stop string is empty; leave it out")
        self.text = text
        self.n_matched = 0
        self._borders = [0, 0]  # [n]: the longest proper prefix of text[:n] that also ends it
        for char in text[1:]:
            self._borders.append(self._step(self._borders[-1], char))

    def advance(self, char: str) -> bool:
        """Take the text's next character; whether it completes the stop string."""
        self.n_matched = self._step(self.n_matched, char)
        return self.n_matched == len(self.text)

    def _step(self, n_matched: int, char: str) -> int:
        while n_matched and (n_matched == len(self.text) or self.text[n_matched] != char):
            n_matched = self._borders[n_matched]
        return n_matched + (self.text[n_matched] == char)
