"""Tokenizers by name: the bundled World vocabulary, a vocabulary file, or single bytes."""

import hashlib
from functools import cache, cached_property
from os import PathLike
from struct import pack

from wkvm import _engine
from wkvm.errors import FileError

_WORLD = "rwkv_vocab_v20230424.txt"


class Tokenizer(_engine.Tokenizer):
    """Greedy longest-match tokenizer over bytes; immutable, and safe in several threads.

    Id 0 ends a document. A vocabulary file has no bytes for it; for single bytes it is byte 0.

    Attributes:
        vocab_size: V; ids from 0 to V - 1 can be decoded, undefined ones to nothing. The largest
            defined id + 1, rounded up to a multiple of 128 as the rows of embeddings are: 65,536
            for the World vocabulary.
        max_id: the largest id that encoding can yield.
    """

    @classmethod
    @cache
    def world(cls) -> "Tokenizer":
        """The World vocabulary that comes with wkvm; the same object every time.

        Raises:
            FileError: the installation lacks the file.
        """
        from importlib.resources import files  # noqa: PLC0415 -- 2 ms, and few need it

        try:
            return cls(files("wkvm").joinpath("vocab", _WORLD).read_bytes())
        except OSError as error:
            raise FileError(f"the World vocabulary is missing, reinstall wkvm: {error}") from error

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> "Tokenizer":
        """A vocabulary file in the World vocabulary's format (docs/tokenizer.md).

        Raises:
            FileError: the file cannot be read.
            FormatError: it is not a vocabulary; the message names the line.
        """
        return cls(path)

    @classmethod
    def byte_level(cls) -> "Tokenizer":
        """256 tokens: byte b is id b."""
        return cls()

    @classmethod
    def named(cls, name: str | PathLike[str]) -> "Tokenizer":
        """``"world"``, ``"bytes"``, or the path of a vocabulary file. Raises as from_file."""
        if name == "world":
            return cls.world()
        return cls.byte_level() if name == "bytes" else cls.from_file(name)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the vocabulary: equal for equal (id, bytes) pairs.

        Hashed are, for each id that has bytes, ascending: id and length as little-endian uint32,
        then the bytes.
        """
        digest = hashlib.sha256()
        for token in range(self.vocab_size):
            text = self.token_bytes(token)
            if text:
                digest.update(pack("<II", token, len(text)) + text)
        return digest.hexdigest()
