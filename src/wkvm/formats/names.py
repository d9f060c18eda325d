"""Canonical tensor names: BlinkDL's, with the prefixes ``rwkv.`` and ``moba.`` for RWKV-X."""

_ALIAS = "moba.blocks."


def canonical_name(name: str) -> str:
    """The canonical spelling of a tensor's name; a name without an alias is its own.

    >>> canonical_name("moba.blocks.0.ln1.weight")
    'moba.0.ln1.weight'
    """
    return "moba." + name.removeprefix(_ALIAS) if name.startswith(_ALIAS) else name
