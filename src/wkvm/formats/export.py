"""``wkvm convert --to``: a checkpoint of any kind in other programs' spellings, byte for byte."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from wkvm.errors import FileError, UnsupportedError
from wkvm.formats.convert import recommendations, refuse_own_file
from wkvm.formats.hf import BLOCK_NAMES, GROUP_NORM_EPS, LAYER_NORM_EPS, OUTER_NAMES
from wkvm.formats.load import lora_ranks, new_builder
from wkvm.formats.names import SPELLING_KEY, is_lora_matrix, is_matrix
from wkvm.formats.open import open_model
from wkvm.formats.source import Bytes, Source, TensorInfo, transposed
from wkvm.formats.unpacked import UnpackedSource
from wkvm.formats.write import OutTensor, check_target, write_safetensors

if TYPE_CHECKING:
    from wkvm.formats.adapter import Adapter

#: What ``export_checkpoint`` writes.
Spelling = Literal["blinkdl", "fla"]

#: Called with ("writing", bytes done, bytes in all).
StagedProgress = Callable[[str, int, int], None]

_FLA_FILES = ("model.safetensors", "config.json")
_BLOCK = re.compile(r"blocks\.([0-9]+)\.(.+)", re.ASCII)
_FIRST_V = {f"blocks.0.att.v{i}" for i in range(3)}  # nothing computes with them
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def export_checkpoint(
    source_path: str | Path,
    target_path: str | Path,
    spelling: Spelling,
    *,
    policy: Mapping[str, int | float] = MappingProxyType({}),
    vocab: str | Path | None = None,
    adapter: "Adapter | None" = None,
    overwrite: bool = False,
    progress: StagedProgress | None = None,
) -> None:
    """Write a checkpoint in BlinkDL's or fla's spelling; every tensor keeps its type and bits.

    Args:
        source_path: any checkpoint that ``open_checkpoint`` opens; a converted one is unpacked.
        target_path: for ``"blinkdl"`` the ``.safetensors`` file to make, for ``"fla"`` the folder,
            of a ``model.safetensors`` and a ``config.json``.
        spelling: of the result.
        policy: as in ``convert_checkpoint``.
        vocab: likewise.
        adapter: to merge into the weights: the tensors that it changes are rounded to their type.
        overwrite: replace the target if it exists; a folder only if it holds nothing else.
        progress: called after each tensor.

    Raises:
        FileError: the system refuses, the target exists, or is the source.
        UnsupportedError: fla cannot say it, or the source was rounded to int8; and as
            ``load_model`` does.
        InvalidArgumentError: a policy option that cannot be recorded, or a `vocab` with ids that
            the model lacks.
        FormatError: as ``load_model`` does.
    """
    target = Path(target_path)
    with open_model(source_path, adapter) as opened:
        source = UnpackedSource(opened) if opened.kind == "wkvm packed" else opened
        shape = new_builder(source, "auto").info()
        metadata = {"format": "pt", SPELLING_KEY: spelling}
        metadata |= recommendations(source, shape["n_vocab"], policy, vocab)
        write = partial(
            write_safetensors,
            metadata=metadata,
            padded=False,
            overwrite=overwrite,
            progress=None if progress is None else lambda n, of: progress("writing", n, of),
        )
        check_target(target, overwrite)
        if spelling == "blinkdl":
            refuse_own_file(target, source)
            write(target, _blinkdl_tensors(source))
            return
        config = _fla_config(source, shape)
        _check_folder(target)
        for name in _FLA_FILES:
            refuse_own_file(target / name, source)
        folder = target.parent / f".{target.name[:200]}.{os.urandom(4).hex()}.tmp"
        try:
            folder.mkdir()
            write(folder / _FLA_FILES[0], _fla_tensors(source, shape))
            (folder / _FLA_FILES[1]).write_text(json.dumps(config, indent=2) + "\n")
            target.mkdir(exist_ok=overwrite)
            for name in _FLA_FILES:
                (folder / name).replace(target / name)
        except FileError:
            raise
        except OSError as error:
            raise FileError(f"cannot write {target}: {error.strerror}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_folder(target: Path) -> None:
    """Raise FileError if the target is there, but no folder of just what is to be written."""
    try:
        others = set(os.listdir(target)) - set(_FLA_FILES) if os.path.lexists(target) else set()
    except OSError as error:
        raise FileError(f"cannot replace {target}: {error.strerror}") from error
    if others:
        raise FileError(
            f"{target} holds {min(others)}, which is no part of what is to be written; name "
            "another folder"
        )


def _blinkdl_tensors(source: Source) -> Iterator[OutTensor]:
    for index, tensor in enumerate(source.tensors):
        yield OutTensor(tensor, partial(_read, source, index))


def _fla_tensors(source: Source, shape: Mapping[str, Any]) -> Iterator[OutTensor]:
    for index, tensor in enumerate(source.tensors):
        if tensor.name not in _FIRST_V:
            info = TensorInfo(_fla_name(tensor.name), tensor.dtype, _fla_shape(tensor, shape))
            yield OutTensor(info, partial(_read_fla, source, index))


def _read(source: Source, index: int) -> Bytes:
    data = source.read(index)
    source.check_unchanged()
    return data


def _read_fla(source: Source, index: int) -> Bytes:
    name, dtype, shape = source.tensors[index]
    data = _read(source, index)
    return transposed(data, dtype, shape[-2:]) if is_lora_matrix(name) else data


def _fla_name(name: str) -> str:
    if block := _BLOCK.fullmatch(name):
        return f"model.layers.{block[1]}.{BLOCK_NAMES[block[2]]}"
    return OUTER_NAMES[name]


def _fla_shape(tensor: TensorInfo, shape: Mapping[str, Any]) -> tuple[int, ...]:
    """What fla's module has, of as many elements; BlinkDL's files have ones in front or not."""
    if is_lora_matrix(tensor.name):
        return tensor.shape[-2:][::-1]
    if is_matrix(tensor.name):
        return tensor.shape[-2:]
    width = shape["n_embd"]
    if tensor.name.endswith(".r_k"):
        return width // shape["head_size"], shape["head_size"]
    return (1, 1, width) if ".att.x_" in tensor.name else (width,)


def _fla_config(source: Source, shape: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json, with the fields that fla's and rwkv7-hf's configurations have.

    Raises:
        UnsupportedError: such a model has no place in fla.
    """
    head_size, width, n_layers = shape["head_size"], shape["n_embd"], shape["n_rwkv"]
    if shape["family"] != "rwkv7":
        raise UnsupportedError(f"{source.path} is an RWKV-X model, for which fla has no place")
    if head_size * LAYER_NORM_EPS != GROUP_NORM_EPS:
        raise UnsupportedError(
            f"{source.path} has heads of {head_size}, for which fla's group norm has an epsilon of "
            f"{head_size * LAYER_NORM_EPS:g}, and RWKV-7's {GROUP_NORM_EPS:g}: fla would compute "
            "another model"
        )
    tensors = [tensor for tensor in source.tensors if tensor.name not in _FIRST_V]
    ranks = lora_ranks(tensors, n_layers)
    for gate, found in ranks.items():
        if len(found) > 1:
            raise UnsupportedError(
                f"{source.path}: the ranks of {gate}1 and {gate}2 differ from block to block, "
                f"{min(found)} to {max(found)}; fla has one for all blocks"
            )
    types = {tensor.dtype for tensor in tensors}
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "attn": None,
        "attn_mode": "chunk",
        "hidden_size": width,
        "hidden_ratio": shape["n_ffn"] / width,
        "intermediate_size": shape["n_ffn"],
        "hidden_act": "sqrelu",
        "num_hidden_layers": n_layers,
        "head_dim": head_size,
        "num_heads": width // head_size,
        "value_dim": [width] * n_layers,
        "decay_low_rank_dim": ranks["w"][0],
        "a_low_rank_dim": ranks["a"][0],
        "v_low_rank_dim": ranks["v"][0] if "v" in ranks else ranks["a"][0],
        "gate_low_rank_dim": ranks["g"][0],
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": LAYER_NORM_EPS,
        "fuse_norm": True,
        "tie_word_embeddings": False,
        "vocab_size": shape["n_vocab"],
        "bos_token_id": 0,  # ends a document, and so begins one
        "eos_token_id": 0,
        "pad_token_id": 0,
        "use_cache": True,
        "torch_dtype": _DTYPES[types.pop()] if len(types) == 1 else "float32",
    }
