"""Canonical tensor names: BlinkDL's, with the prefixes ``rwkv.`` and ``moba.`` for RWKV-X."""

import re

#: Metadata entry of an exported file: whose spelling its tensors have.
SPELLING_KEY = "wkvm.spelling"

_ALIAS = "moba.blocks."
_MATRIX = re.compile(r"(.*\.)?(emb|head|receptance|key|value|output)\.weight")
_VECTOR = re.compile(r".*\.(x_[rwkvag]|[wav]0|k_k|k_a)")
_LORA_MATRIX = re.compile(r"(rwkv\.)?blocks\.[0-9]+\.att\.[wavg][12]", re.ASCII)


def canonical_name(name: str) -> str:
    """The canonical spelling of a tensor's name; a name without an alias is its own.

    >>> canonical_name("moba.blocks.0.ln1.weight")
    'moba.0.ln1.weight'
    """
    return "moba." + name.removeprefix(_ALIAS) if name.startswith(_ALIAS) else name


def is_lora_matrix(name: str) -> bool:
    """Whether a canonical name is that of a low-rank factor.

    The first one of a pair is [D, rank], the second one [rank, D]; other programs have them
    transposed.

    >>> is_lora_matrix("blocks.0.att.w1"), is_lora_matrix("blocks.0.att.w0")
    (True, False)
    """
    return _LORA_MATRIX.fullmatch(name) is not None


def is_matrix(name: str) -> bool:
    """Whether a canonical name is that of a big matrix, [out, in], or of the embedding.

    >>> is_matrix("blocks.0.ffn.key.weight"), is_matrix("blocks.0.ln1.weight")
    (True, False)
    """
    return _MATRIX.fullmatch(name) is not None


def is_vector(name: str) -> bool:
    """Whether a canonical name is that of a vector [1, 1, D], which others have as [D].

    >>> is_vector("blocks.0.att.x_r"), is_vector("blocks.0.ln1.weight")
    (True, False)
    """
    return _VECTOR.fullmatch(name) is not None
