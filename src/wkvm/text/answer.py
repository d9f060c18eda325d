"""The bytes of an answer as they are generated, and how many of them are certain to stay."""

import codecs
from collections.abc import Sequence

from wkvm.errors import InvalidArgumentError


class AnswerBytes:
    """Collects an answer token by token, and trims its end.

    Not certain, as long as nothing else follows, are blanks, a character that is not complete, and
    what may become a stop string. So what is certain never shrinks, and is the answer once it has
    ended.

    Attributes:
        data: every byte so far.
        n_certain: how many of them, from the first on, are.
        matched: whether a stop string has ended the answer.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """An answer without a byte yet.

        Raises:
            InvalidArgumentError: a stop string is empty, or no str; or `stop` is a single one.
        """
        if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
            raise InvalidArgumentError(
                f"stop is {stop!r}; give a list of strings, none of them empty"
            )
        self._stop = [text.encode() for text in stop]
        self.data = bytearray()
        self.n_certain = 0
        self.matched = False

    def push(self, data: bytes) -> str:
        """Take the bytes of the next token; give the text that has become certain."""
        self.data += data
        tail = bytes(self.data[self.n_certain :])
        ends = [at for stop in self._stop if (at := tail.find(stop)) >= 0]
        if ends:
            self.matched = True
            return self._settle(tail[: min(ends)])
        n_open = max((_n_begun(stop, tail) for stop in self._stop), default=0)
        return self._settle(tail[: len(tail) - n_open])

    def finish(self) -> str:
        """The model has ended the answer itself: what looked like a stop string was none."""
        return "" if self.matched else self._settle(bytes(self.data[self.n_certain :]))

    def _settle(self, tail: bytes) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(tail[-3:])  # of a character's four bytes, three may be there
        certain = tail[: len(tail) - len(decoder.getstate()[0])].rstrip()
        self.n_certain += len(certain)
        return certain.decode(errors="replace")


def _n_begun(stop: bytes, tail: bytes) -> int:
    """How many bytes of the stop string stand at the end."""
    return next((n for n in range(len(stop) - 1, 0, -1) if tail.endswith(stop[:n])), 0)
