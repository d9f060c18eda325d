"""Checkpoints that look like RWKV-7 and are something else, told apart by their tensors' names.

The names are those of BlinkDL's own inference code, of which no line is here:
``RWKV-v7/rwkv_v7a_demo.py`` (DeepEmbed), ``rwkv_v7b_demo.py`` (DEA), ``rwkv_v8_rc00_demo.py`` and
``rwkv_v8_rc00_hybrid_demo.py`` (their first form), ``RWKV-v8/*rosa*.py`` (ROSA), all in
https://github.com/BlinkDL/RWKV-LM; of its older models; of web-rwkv's spelling of those; and of
RWKV-PEFT's files that are no models.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from wkvm.errors import UnsupportedError
from wkvm.formats.source import shown

_RUNS = "wkvm runs plain RWKV-7 and RWKV-X"

#: Part of a tensor's name -> what the model needs beyond RWKV-7.
_EXTRAS = {
    r"\.ffn\.(s_emb(_x)?\.weight|s[012]|enn\.weight)$": "DeepEmbed",
    r"\.qkv\.": "DEA attention",
    r"(^|\.)rosa(_qkv)?\d*\.": "ROSA",
}

#: Part of a tensor's name -> its family. The first that occurs decides: RWKV-6 has some of
#: RWKV-5's names, and RWKV-5 before 5.2 all of RWKV-4's and a group norm, as RWKV-7 has.
_FAMILIES = {
    r"\.att\.(time_maa_|time_mix_w1$|time_decay_w1$)": "RWKV-6",
    r"\.att\.time_faaaa$": "RWKV-5",
    r"\.att\.time_(first|decay)$": "RWKV-4 or 5",
}

#: Part of a tensor's name -> what the file is, and what to do with it.
_COMPANIONS = {
    r"\.(init_)?lora_[AB](\.|$)": "holds an adapter: load its model with it (adapter=, --adapter)",
    r"\.att\.time_state$": "holds a tuned initial state: begin a session with it (init_state=, "
    "--state); if weights lie beside it, save the two apart",
}


def refuse_variants(path: Path, names: Iterable[str]) -> None:
    """Raise UnsupportedError if the tensors are those of a model that wkvm does not run.

    Args:
        path: of the file, for the message.
        names: of its tensors, canonical.
    """
    names = sorted(names)
    for pattern, what in _COMPANIONS.items():
        if (found := _first(pattern, names)) is not None:
            raise UnsupportedError(f"{path} (tensor {shown(found)}) {what}")
    for pattern, family in _FAMILIES.items():
        if (found := _first(pattern, names)) is not None:
            raise UnsupportedError(
                f"{path} is an {family} checkpoint (tensor {shown(found)}); {_RUNS}"
            )
    extras = {what: _first(pattern, names) for pattern, what in _EXTRAS.items()}
    needed = [f"{what} (tensor {shown(name)})" for what, name in extras.items() if name is not None]
    if needed:
        raise UnsupportedError(
            f"{path} is a variant of RWKV-7 with {' and '.join(needed)}, which wkvm does not "
            f"compute; {_RUNS}"
        )


def _first(pattern: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if re.search(pattern, name)), None)
