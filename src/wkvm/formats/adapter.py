"""LoRA and PiSSA adapters: low-rank changes of matrices, B [out, r] A [r, in], in two spellings.

    PEFT        a folder of adapter_config.json, which says r, alpha and the kind, and
                adapter_model.safetensors with ``base_model.model.<module>.lora_A.weight`` [r, in]
                and ``lora_B.weight`` [out, r]; modules in BlinkDL's names or in fla's
    RWKV-PEFT   before it used PEFT: one .pth with ``blocks.N.att.key.lora_A`` and ``lora_B``, which
                says neither alpha nor its kind (that project's merge/merge.py is told both)

Either may hold whole tensors beside them, which replace the model's: norms, as a rule.

PiSSA trains the r largest singular directions of a matrix itself, so what they were at the
beginning, B0 A0, must come off the matrix: W - B0 A0 + B A. An adapter does not hold B0 and A0, and
a singular value decomposition anew would not give them back. So the file that training wrote at its
start is needed: RWKV-PEFT's init_pissa.pth, or with PEFT the adapter as it was saved before the
first step. One that PEFT has converted to plain LoRA needs none.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from wkvm.errors import FormatError, InvalidArgumentError, UnsupportedError
from wkvm.formats.floats import FLOAT_TYPES, as_float32
from wkvm.formats.hf import BLOCK_NAMES, OUTER_NAMES
from wkvm.formats.json_file import read_json
from wkvm.formats.names import canonical_name, is_lora_matrix
from wkvm.formats.open import open_checkpoint
from wkvm.formats.source import TensorInfo, file_identity, shown

_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

_FACTOR = re.compile(r"(.+)\.(init_)?lora_([AB])(?:\.default)?(?:\.weight)?")
_LAYER = re.compile(r"model\.layers\.([0-9]{1,6})\.(.+)", re.ASCII)

#: fla's names -> canonical ones.
_FROM_OUTER = {theirs: name for name, theirs in OUTER_NAMES.items()}
_FROM_BLOCK = {theirs: name for name, theirs in BLOCK_NAMES.items()}

#: Part of a tensor's name -> what makes the adapter one that is not merged here.
_OTHER_KINDS = {
    r"\.(bone|disha|miss)(_|\.|$)": "a Bone adapter (also DiSHA, MiSS)",
    r"\.lora_magnitude_vector": "a DoRA adapter",
    r"\.lora_embedding_[AB]": "an adapter of the embedding",
    r"\.lora_B(\.default)?\.bias$": "an adapter with biases",
    r"\.att\.time_state$": "a tuned initial state (init_state=, --state)",
}

#: Entries of adapter_config.json that change the arithmetic if they are set, in words.
_OTHER_SETTINGS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "rank_pattern": "a rank for each module (rank_pattern)",
    "alpha_pattern": "an alpha for each module (alpha_pattern)",
    "fan_in_fan_out": "matrices that are stored [in, out] (fan_in_fan_out)",
    "layer_replication": "replicated layers (layer_replication)",
    "lora_bias": "biases (lora_bias)",
    "target_parameters": "parameters that are no modules (target_parameters)",
    "trainable_token_indices": "single rows of the embedding (trainable_token_indices)",
    "alora_invocation_tokens": "an adapter that acts from some token on (aLoRA)",
    "arrow_config": "a choice between adapters (Arrow)",
}

#: Entries that do not matter once an adapter is trained, or that are looked at by name.
_KNOWN_SETTINGS = {
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
}

#: Values of init_lora_weights that leave the model's own matrices as they are.
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")

_MAX_RANK = 65536
_MAX_ALPHA = 1e9


@dataclass(frozen=True)
class Adapter:
    """An adapter, and what its file leaves unsaid.

    Attributes:
        path: a folder that PEFT wrote, or the ``adapter_model.safetensors`` in it; or a ``.pth`` of
            RWKV-PEFT.
        alpha: of such a ``.pth`` of LoRA, as it was trained; its rank divides it.
        init: of PiSSA: the ``.pth``, or PEFT's folder, of the factors that training began with.
    """

    path: str | Path
    alpha: float | None = None
    init: str | Path | None = None

    def __post_init__(self) -> None:
        """Check the types: these come from a caller.

        Raises:
            InvalidArgumentError: `path` or `init` is no path, or `alpha` no number.
        """
        for name, value in (("path", self.path), ("init", self.init)):
            if not (isinstance(value, str | os.PathLike) or (name == "init" and value is None)):
                raise InvalidArgumentError(
                    f"the adapter's {name} is {value!r}; it must be the path of one"
                )
        if self.alpha is not None and not _is_number(self.alpha):
            raise InvalidArgumentError(
                f"the adapter's alpha is {self.alpha!r}; it must be a number up to {_MAX_ALPHA:g}"
            )


class _Config(NamedTuple):
    """What an adapter_config.json says."""

    rank: int
    scale: float
    is_pissa: bool


class _Pair(NamedTuple):
    """The low-rank change of one matrix: indices of its two factors in their source."""

    a: int
    b: int


class AdapterFile:
    """An open adapter file, every tensor of which has its place in a checkpoint.

    Attributes:
        source: the file.
        config: what lies beside it; None for a ``.pth`` of RWKV-PEFT.
        pairs: canonical name of a matrix -> its change.
        whole: canonical name of a tensor -> index of the one that replaces it.
    """

    def __init__(self, path: str | Path, base: Mapping[str, TensorInfo], *, is_init: bool) -> None:
        weights, config = _find(Path(path))
        self.source = open_checkpoint(weights)
        try:
            self.config = None
            if config is not None:
                self.source.files = [*self.source.files, config]
                self.source.identity = (*self.source.identity, *file_identity([config]))
                self.config = _read_config(config)
            self._check_kind()
            self._place(base, is_init=is_init)
            for name, pair in self.pairs.items():
                self._check_shapes(base[name], pair)
        except BaseException:
            self.source.close()
            raise

    def factors(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A [r, in] and B [out, r] of a matrix.

        Raises:
            FormatError: a value is not finite.
        """
        pair = self.pairs[name]
        return self.values(pair.a), self.values(pair.b)

    def values(self, index: int) -> NDArray[np.float32]:
        """A tensor's values. Raises FormatError if one is not finite."""
        tensor = self.source.tensors[index]
        values = as_float32(self.source.read(index), tensor.dtype).reshape(tensor.shape)
        if not np.isfinite(values).all():
            raise self._wrong(tensor, "holds a value that is not finite")
        return values

    def rank(self, name: str) -> int:
        """r of a matrix's change."""
        return self.source.tensors[self.pairs[name].a].shape[0]

    def _check_kind(self) -> None:
        """Refuse a file of anything but float factors and tensors beside them."""
        for tensor in self.source.tensors:
            for pattern, kind in _OTHER_KINDS.items():
                if re.search(pattern, tensor.name):
                    raise UnsupportedError(
                        f"{self.source.path} (tensor {shown(tensor.name)}) is {kind}; wkvm merges "
                        "LoRA and PiSSA"
                    )
            if tensor.dtype not in FLOAT_TYPES:
                raise self._wrong(tensor, f"is {tensor.dtype}, not a float type")
        if not any(_FACTOR.fullmatch(tensor.name) for tensor in self.source.tensors):
            raise FormatError(f"{self.source.path} holds no lora_A and lora_B, and so no adapter")

    def _place(self, base: Mapping[str, TensorInfo], *, is_init: bool) -> None:
        """Find what each tensor changes."""
        self.whole: dict[str, int] = {}
        sides: dict[str, dict[str, int]] = {}
        for index, tensor in enumerate(self.source.tensors):
            factor = _FACTOR.fullmatch(tensor.name)
            if factor is not None and factor[2] and not is_init:
                raise InvalidArgumentError(
                    f"{self.source.path} holds what PiSSA began with: give it as init= "
                    "(--adapter-init), and the trained adapter as the adapter"
                )
            name = _canonical(f"{factor[1]}.weight" if factor else tensor.name, base)
            if name is None or not (
                len(base[name].shape) == 2
                if factor
                else not is_init and _is_whole(tensor, base[name])
            ):
                raise self._wrong(
                    tensor, "has no place in the model: the adapter is one of another model"
                )
            taken = sides.setdefault(name, {}) if factor else self.whole
            if taken.setdefault(factor[3] if factor else name, index) != index:
                raise self._wrong(tensor, f"is the second one for {name}")
        for name, both in sides.items():
            if len(both) == 1 or name in self.whole:
                what = "a whole matrix beside its change" if name in self.whole else "one factor"
                raise FormatError(f"{self.source.path} has {what} for {name}; save it again")
        self.pairs = {name: _Pair(both["A"], both["B"]) for name, both in sides.items()}

    def _check_shapes(self, matrix: TensorInfo, pair: _Pair) -> None:
        n_out, n_in = reversed(matrix.shape) if is_lora_matrix(matrix.name) else matrix.shape
        a, b = self.source.tensors[pair.a], self.source.tensors[pair.b]
        rank = a.shape[0] if a.shape else 0
        if not 1 <= rank <= _MAX_RANK or a.shape != (rank, n_in) or b.shape != (n_out, rank):
            raise self._wrong(
                a,
                f"and lora_B have shapes {list(a.shape)} and {list(b.shape)}; [r, {n_in}] and "
                f"[{n_out}, r] are expected for {matrix.name}",
            )
        if self.config is not None and rank != self.config.rank:
            raise self._wrong(a, f"has rank {rank}, {_CONFIG} says {self.config.rank}")

    def _wrong(self, tensor: TensorInfo, what: str) -> FormatError:
        return FormatError(f"{self.source.path}: tensor {shown(tensor.name)} {what}")


def _find(path: Path) -> tuple[Path, Path | None]:
    """The file of an adapter's tensors, and the adapter_config.json beside it if it is PEFT's."""
    if not os.path.isdir(path):  # which never raises
        return path, path.parent / _CONFIG if path.name in _WEIGHTS else None
    found = [path / name for name in _WEIGHTS if os.path.exists(path / name)]
    if not found or not os.path.exists(path / _CONFIG):
        raise FormatError(
            f"{path} is a folder without {_CONFIG} and {_WEIGHTS[0]}: name the folder of a PEFT "
            "adapter, or the .pth of an RWKV-PEFT one"
        )
    return found[0], path / _CONFIG


def _canonical(name: str, base: Mapping[str, TensorInfo]) -> str | None:
    """The name in a checkpoint of what an adapter's tensor belongs to; None if it is not there."""
    name = name.removeprefix("base_model.model.")
    for spelt in (name, name.removeprefix("model.")):
        if canonical_name(spelt) in base:
            return canonical_name(spelt)
    layer = _LAYER.fullmatch(name)
    found = _FROM_OUTER.get(name)
    if layer and layer[2] in _FROM_BLOCK:
        found = f"blocks.{int(layer[1])}.{_FROM_BLOCK[layer[2]]}"
    return found if found in base else None


def _is_whole(tensor: TensorInfo, target: TensorInfo) -> bool:
    """Whether a tensor can stand in another's place: of its shape, but for sides of length 1."""
    sides = [[side for side in info.shape if side != 1] for info in (tensor, target)]
    return sides[0] == sides[1] and not is_lora_matrix(target.name)


def scales(adapter: Adapter, file: AdapterFile, init: AdapterFile | None) -> dict[str, float]:
    """What each matrix's product is multiplied with.

    Raises:
        InvalidArgumentError: an `alpha` or `init` that the adapter lacks, or does not need.
        UnsupportedError: PiSSA without `init`.
        FormatError: an `init` of another adapter.
    """
    path = file.source.path
    if init is not None:
        _check_init(file, init)
    if file.config is not None:
        if adapter.alpha is not None:
            raise InvalidArgumentError(f"{path} says its alpha in {_CONFIG}; give none")
        if file.config.is_pissa and init is None:
            raise UnsupportedError(
                f"{path} is a PiSSA adapter: what it began with must come off the model first, and "
                "cannot be computed anew: give that as init= (--adapter-init), or convert the "
                "adapter to LoRA with PEFT (path_initial_model_for_weight_conversion)"
            )
        if init is not None and not file.config.is_pissa:
            raise InvalidArgumentError(f"{path} is plain LoRA, which needs no init")
        return dict.fromkeys(file.pairs, file.config.scale)
    if init is not None:
        if adapter.alpha is not None:
            raise InvalidArgumentError(f"{path} is PiSSA, for which RWKV-PEFT ignores alpha")
        return dict.fromkeys(file.pairs, 1.0)
    if adapter.alpha is None:
        raise InvalidArgumentError(
            f"{path} says neither its kind nor its alpha: for LoRA give alpha= (--adapter-alpha), "
            "as it was trained; for PiSSA init= (--adapter-init), its init_pissa.pth"
        )
    return {name: adapter.alpha / file.rank(name) for name in file.pairs}


def _check_init(file: AdapterFile, init: AdapterFile) -> None:
    """Refuse factors to begin with that are not those of an adapter."""
    path, other = init.source.path, file.source.path
    if init.pairs.keys() != file.pairs.keys() or (init.config is None) != (file.config is None):
        raise FormatError(
            f"{path} and {other} change different matrices: they do not belong together"
        )
    if init.config is not None and file.config is not None:
        same = init.config[:2] == file.config[:2]
    else:
        same = all(init.rank(name) == file.rank(name) for name in file.pairs)
    if not same:
        raise FormatError(
            f"{path} and {other} have other ranks or alphas: they do not belong together"
        )


def _read_config(path: Path) -> _Config:
    content = read_json(path, "an adapter's config")
    kind = content.get("peft_type")
    if kind != "LORA":
        raise UnsupportedError(f"{path} is of type {_in_words(kind)}; wkvm merges LoRA and PiSSA")
    for key, what in _OTHER_SETTINGS.items():
        if content.get(key):
            raise UnsupportedError(f"{path} asks for {what}; wkvm merges plain LoRA and PiSSA")
    if content.get("bias") not in (None, "none"):
        raise UnsupportedError(f"{path} asks for bias {_in_words(content['bias'])}; RWKV has none")
    for key, value in content.items():
        if value and key not in _KNOWN_SETTINGS:
            raise UnsupportedError(
                f"{path} says {shown(key)} {_in_words(value)}, which wkvm does not know; merge the "
                "adapter with PEFT"
            )
    init = content.get("init_lora_weights")
    is_pissa = isinstance(init, str) and re.fullmatch("pissa(_niter_[0-9]+)?", init) is not None
    if not is_pissa and init not in _PLAIN_INITS:
        raise UnsupportedError(
            f"{path} asks for init_lora_weights {_in_words(init)}, which changes the model's own "
            "matrices; convert the adapter to LoRA with PEFT "
            "(path_initial_model_for_weight_conversion)"
        )
    rank, alpha = content.get("r"), content.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= _MAX_RANK:
        raise FormatError(
            f"{path}: r is {_in_words(rank)}, not a whole number from 1 to {_MAX_RANK}"
        )
    if not _is_number(alpha):
        raise FormatError(
            f"{path}: lora_alpha is {_in_words(alpha)}, not a number up to {_MAX_ALPHA:g}"
        )
    by_root = content.get("use_rslora")
    if by_root not in (None, True, False):
        raise FormatError(f"{path}: use_rslora is {_in_words(by_root)}, not true or false")
    scale = alpha / (math.sqrt(rank) if by_root else rank)
    return _Config(rank, scale, is_pissa)


def _is_number(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_ALPHA
    )


def _in_words(value: object) -> str:
    """A value of a config as a short part of a message; lists may be nested too deep for it."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else shown(value)
