"""RWKV-7 as fla and Hugging Face spell it: other names, LoRA matrices transposed, a config.json.

fla is flash-linear-attention; the ``rwkv7-hf`` package uses its names. The shapes say what the
model is, and config.json may leave anything out; but what it does say must be what wkvm computes.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wkvm.errors import FormatError, UnsupportedError
from wkvm.formats.json_file import read_json
from wkvm.formats.mapped import Entry, MappedSource, entry_of
from wkvm.formats.source import Source, TensorInfo, file_identity, shown

#: Epsilon of every layer norm, and of the group norm behind the time mix.
LAYER_NORM_EPS = 1e-5
GROUP_NORM_EPS = 64e-5

#: Canonical name -> theirs, outside the blocks.
OUTER_NAMES = {
    "emb.weight": "model.embeddings.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
}

#: The same behind ``blocks.N.`` and ``model.layers.N.``.
BLOCK_NAMES = {
    "ln0.weight": "pre_norm.weight",
    "ln0.bias": "pre_norm.bias",
    "ln1.weight": "attn_norm.weight",
    "ln1.bias": "attn_norm.bias",
    "ln2.weight": "ffn_norm.weight",
    "ln2.bias": "ffn_norm.bias",
    **{f"att.{name}": f"attn.{name}" for name in ("k_k", "k_a", "r_k")},
    **{f"att.x_{gate}": f"attn.x_{gate}" for gate in "rwkvag"},
    **{f"att.{gate}0": f"attn.{gate}_lora.lora.2.bias" for gate in "wav"},
    **{f"att.{gate}1": f"attn.{gate}_lora.lora.0.weight" for gate in "wavg"},
    **{f"att.{gate}2": f"attn.{gate}_lora.lora.2.weight" for gate in "wavg"},
    "att.receptance.weight": "attn.r_proj.weight",
    "att.key.weight": "attn.k_proj.weight",
    "att.value.weight": "attn.v_proj.weight",
    "att.output.weight": "attn.o_proj.weight",
    "att.ln_x.weight": "attn.g_norm.weight",
    "att.ln_x.bias": "attn.g_norm.bias",
    "ffn.x_k": "ffn.x_k",
    "ffn.key.weight": "ffn.key.weight",
    "ffn.value.weight": "ffn.value.weight",
}

Shapes = Mapping[str, tuple[int, ...]]

_FROM_OUTER = {theirs: name for name, theirs in OUTER_NAMES.items()}
_FROM_BLOCK = {theirs: name for name, theirs in BLOCK_NAMES.items()}
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)", re.ASCII)
_FUSED = "attn.x_x"  # [6, D]: x_r, x_w, ... as one, in older files
_ROWS = {gate: row for row, gate in enumerate("rwkvag")}

#: What config.json may call the channel mix's activation.
_SQUARED_RELU = (None, "sqrelu", "relu2")


class _Config(NamedTuple):
    """What config.json says that no shape does; the defaults are fla's."""

    norm_eps: float = LAYER_NORM_EPS
    has_norm_bias: bool = True
    is_tied: bool = False  # the head is the embedding


def is_hf(raw: Source) -> bool:
    """Whether a source's names are fla's."""
    return any(tensor.name == OUTER_NAMES["emb.weight"] for tensor in raw.tensors)


def open_hf(raw: Source) -> Source:
    """A source whose names are fla's, and the config.json beside it if there is one, as ours.

    Raises:
        FileError: the system refuses config.json.
        FormatError: a tensor has no place in RWKV-7, or config.json is damaged, or does not
            belong to the tensors.
        UnsupportedError: the config asks for other arithmetic than RWKV-7's.
    """
    shapes = {tensor.name: tensor.shape for tensor in raw.tensors}
    path = raw.path.parent / "config.json"
    has_config = os.path.lexists(path)
    identity = file_identity([path]) if has_config else ()
    config = _read_config(path, shapes) if has_config else _Config()
    _check_epsilons(path if has_config else raw.path, config.norm_eps, shapes)
    source = MappedSource(raw, f"fla {raw.kind}", _entries(raw, config))
    if has_config:  # another one may make other tensors of the same files
        source.files = [*source.files, path]
        source.identity = (*source.identity, *identity)
    return source


def _entries(raw: Source, config: _Config) -> Iterator[Entry]:
    for tensor in raw.tensors:
        layer = _LAYER.fullmatch(tensor.name)
        if layer and layer[2] == _FUSED:
            yield from _split(raw.path, tensor, f"blocks.{layer[1]}.att.x_")
            continue
        name = _FROM_OUTER.get(tensor.name)
        if layer and layer[2] in _FROM_BLOCK:
            name = f"blocks.{layer[1]}.{_FROM_BLOCK[layer[2]]}"
        if name is None:
            raise FormatError(
                f"{raw.path}: tensor {shown(tensor.name)} is not part of an RWKV-7 model in fla's "
                "names: the file holds a variant that wkvm does not run, or something else beside "
                "the model"
            )
        yield entry_of(name, tensor)
        is_norm = re.search(r"(^|\.)ln(_out|[012])\.weight$", name)
        if is_norm and not config.has_norm_bias:
            bias = name.removesuffix("weight") + "bias"
            yield Entry(bias, tensor.shape, tensor.name, is_zero=True)
        if name == "emb.weight" and config.is_tied:
            yield Entry("head.weight", tensor.shape, tensor.name)


def _split(path: Path, fused: TensorInfo, prefix: str) -> Iterator[Entry]:
    """The six vectors of an ``x_x``."""
    if len(fused.shape) != 2 or fused.shape[0] != len(_ROWS):
        raise FormatError(
            f"{path}: tensor {shown(fused.name)} has shape {list(fused.shape)}; "
            f"[{len(_ROWS)}, n_embd] is expected"
        )
    for gate, row in _ROWS.items():
        yield Entry(prefix + gate, (1, 1, fused.shape[1]), fused.name, row)


def _read_config(path: Path, shapes: Shapes) -> _Config:
    """What config.json says, after checking that it belongs to tensors of these shapes."""
    content = read_json(path, "a model's config")
    for key, actual in _sizes(shapes).items():
        stated = content.get(key)
        if stated is not None and stated != actual:
            raise FormatError(
                f"{path} says {key} {_in_words(stated)}, but the tensors make it {actual}: they do "
                "not belong together; download both again"
            )
    if content.get("attn") is not None:
        raise UnsupportedError(
            f"{path} asks for attention layers (attn); wkvm runs RWKV-7 without them, and RWKV-X"
        )
    if content.get("hidden_act") not in _SQUARED_RELU:
        raise UnsupportedError(
            f"{path} asks for hidden_act {_in_words(content['hidden_act'])}; RWKV-7's channel mix "
            "has sqrelu"
        )
    if not _flag(path, content, "norm_first", default=True):
        raise UnsupportedError(
            f"{path} says norm_first false: a model without the norm behind the embedding, which "
            "RWKV-7 has"
        )
    eps = content.get("norm_eps")
    if eps is not None and not isinstance(eps, float):
        raise FormatError(
            f"{path}: norm_eps is {_in_words(eps)}, not a small number; download it again"
        )
    config = _Config(
        LAYER_NORM_EPS if eps is None else eps,
        _flag(path, content, "norm_bias", default=True),
        _flag(path, content, "tie_word_embeddings", default=False),
    )
    if config.is_tied and OUTER_NAMES["head.weight"] in shapes:
        raise FormatError(
            f"{path} says tie_word_embeddings true, but there is a {OUTER_NAMES['head.weight']}: "
            "say false if that is the head"
        )
    return config


def _sizes(shapes: Shapes) -> dict[str, int]:
    """Key of config.json -> what the shapes say, as far as they do."""
    sizes = {}
    if len(embedding := shapes[OUTER_NAMES["emb.weight"]]) == 2:
        sizes["vocab_size"], sizes["hidden_size"] = embedding
    if head_size := _head_size(shapes):
        sizes["head_dim"] = head_size
    if key := shapes.get("model.layers.0.ffn.key.weight"):
        sizes["intermediate_size"] = key[0]
    layers = [int(match[1]) for name in shapes if (match := _LAYER.fullmatch(name))]
    sizes["num_hidden_layers"] = max(layers, default=-1) + 1
    return sizes


def _head_size(shapes: Shapes) -> int:
    """N of r_k [H, N]; 0 without one, which the loader will miss."""
    shape = shapes.get("model.layers.0.attn.r_k", ())
    return shape[-1] if shape else 0


def _flag(path: Path, content: dict[str, Any], key: str, *, default: bool) -> bool:
    value = content.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise FormatError(
            f"{path}: {key} is {_in_words(value)}, not true or false; download it again"
        )
    return value


def _in_words(value: object) -> str:
    """A value of config.json as a short part of a message; lists may be nested too deep for it."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else shown(value)


def _check_epsilons(path: Path, norm_eps: float, shapes: Shapes) -> None:
    """Refuse a model whose norms have other epsilons than ours.

    fla takes the head size times `norm_eps` for the group norm, BlinkDL's code 64e-5 always.
    """
    head_size = _head_size(shapes)
    group_norm_eps = head_size * norm_eps
    if not (
        math.isclose(norm_eps, LAYER_NORM_EPS, rel_tol=1e-6)
        and (head_size == 0 or math.isclose(group_norm_eps, GROUP_NORM_EPS, rel_tol=1e-6))
    ):
        raise UnsupportedError(
            f"{path}: norm_eps {norm_eps:g} with heads of {head_size} means an epsilon of "
            f"{norm_eps:g} in layer norms and of {group_norm_eps:g} in the group norm; wkvm "
            f"computes with {LAYER_NORM_EPS:g} and {GROUP_NORM_EPS:g}, as RWKV-7 was published: "
            "open BlinkDL's checkpoint instead, if this model was made from one"
        )
