"""A vocabulary file for the synthetic models, whose heads have 512 rows."""

from pathlib import Path


def write_small(path: Path) -> Path:
    """Ids 1 to 256 are the bytes, 257 to 511 two characters each, some of them not ASCII."""
    texts = [bytes([byte]) for byte in range(256)]
    texts += [f"{a}{b}".encode() for a in "abcdefghij éß" for b in "klmnopqrstuvwxyz .:\n"][:255]
    path.write_text("".join(f"{i} {text!r} {len(text)}\n" for i, text in enumerate(texts, 1)))
    return path
