"""Chooses a vocabulary for greedy longest match, and writes it in the World format.

Ids 1 to 256 are the single bytes, as in the World vocabulary; then come the strings that shorten
the texts most. Id 0 ends a document.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_PIECE = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]+|\s+|_")  # no token crosses a piece's border
_LONGEST = 16  # bytes of a token
_CANDIDATES = 40_000
_SHRINK = 0.7  # of the strings that each round keeps


def choose(texts: Iterable[tuple[str, float]], size: int) -> list[bytes]:
    """At most ``size`` strings of two bytes or more, sorted, for (text, weight) pairs.

    It starts from the substrings that cover most text and drops, round by round, those that save
    least when the texts are cut by greedy longest match with what is left.
    """
    pieces: dict[bytes, float] = defaultdict(float)
    for text, weight in texts:
        for piece in _PIECE.findall(text):
            pieces[piece.encode()] += weight
    coverage: dict[bytes, float] = defaultdict(float)
    for piece, n in pieces.items():
        for start in range(len(piece)):
            for end in range(start + 2, min(start + _LONGEST, len(piece)) + 1):
                coverage[piece[start:end]] += n * (end - start - 1)
    chosen = sorted(coverage, key=lambda string: (-coverage[string], string))
    chosen = chosen[: max(_CANDIDATES, size)]
    while len(chosen) > size:
        saved = _savings(pieces, frozenset(chosen))
        keep = max(size, int(len(chosen) * _SHRINK))
        chosen = sorted(chosen, key=lambda string: (-saved[string], string))[:keep]
    return sorted(chosen)


def _savings(pieces: dict[bytes, float], strings: frozenset[bytes]) -> dict[bytes, float]:
    """The bytes less one that each string covers when every piece is cut greedily."""
    saved: dict[bytes, float] = defaultdict(float)
    for piece, n in pieces.items():
        start = 0
        while start < len(piece):
            for end in range(min(start + _LONGEST, len(piece)), start + 1, -1):
                if piece[start:end] in strings:
                    saved[piece[start:end]] += n * (end - start - 1)
                    start = end
                    break
            else:
                start += 1
    return saved


def write(path: Path, strings: list[bytes]) -> None:
    """Write the 256 bytes and ``strings`` as a vocabulary file (docs/tokenizer.md)."""
    entries = [bytes([byte]) for byte in range(256)] + strings
    path.write_text("".join(f"{i} {literal(e)} {len(e)}\n" for i, e in enumerate(entries, 1)))


def literal(entry: bytes) -> str:
    """``entry`` as the World format spells it: text if it is UTF-8, else bytes."""
    try:
        return ascii(entry.decode())
    except UnicodeDecodeError:
        return repr(entry)
