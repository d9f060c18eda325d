"""From a checkpoint on disk to a native model."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wkvm._engine import Model, ModelBuilder
from wkvm.errors import FileError, FormatError, InvalidArgumentError, WkvmError
from wkvm.formats.fingerprint import recorded_digest, weights_digest
from wkvm.formats.open import open_model
from wkvm.formats.source import Identity, Source, TensorInfo, shown
from wkvm.formats.variants import refuse_variants

if TYPE_CHECKING:
    from wkvm.formats.adapter import Adapter

#: Options of the attention policies that travel in our own files' metadata, as ``wkvm.<name>``, and
#: the smallest and largest value of each; a float's smallest is excluded.
POLICY_KEYS: dict[str, tuple[int, int] | tuple[float, float]] = {
    "moba_chunk_size": (1, 2**31 - 1),
    "moba_topk": (1, 2**31 - 1),
    "window_sinks": (0, 2**29 - 1),
    "window_size": (1, 2**29 - 1),
    "memory_keep_tokens": (1, 2**31 - 1),
    "memory_keep_ratio": (0.0, 1.0),
}

#: Two of them say the same thing, so only one of the two is recorded.
_ALTERNATIVES = {"memory_keep_tokens", "memory_keep_ratio"}

_WHOLE = re.compile("[0-9]{1,10}")
_DECIMAL = re.compile(r"[0-9]{1,3}(\.[0-9]{1,24})?(e-?[0-9]{1,3})?")  # what repr writes from 0 to 1

#: Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadedModel:
    """A native model and where it came from.

    Attributes:
        model: the packed weights, ready for an engine.
        path: the file or shard index that was opened, absolute.
        kind: of the checkpoint; see ``Source.kind``.
        metadata: of the file.
        policy_defaults: options of the attention policy that the file recommends.
        identity: of the files; see ``Source.identity``.
        adapter: that was merged in.
    """

    model: Model
    path: Path
    kind: str
    metadata: Mapping[str, str]
    policy_defaults: Mapping[str, int | float]
    identity: Identity
    adapter: "Adapter | None"

    def weights_digest(self, *, use_cache: bool = True) -> str:
        """What ``fingerprint.weights_digest`` says of the file, which may have to be read again.

        A converted file has said it when it was loaded, and is not opened again.

        Raises:
            FileError: the file is not the one any more that was loaded.
            FormatError: a converted file that does not carry its digest.
        """
        if self.kind == "wkvm packed":
            return recorded_digest(self.path, self.metadata)
        with open_model(self.path, self.adapter) as source:
            if source.identity != self.identity:
                raise FileError(f"{self.path} changed since it was loaded; load it again")
            return weights_digest(source, use_cache=use_cache)


def load_model(
    path: str | Path,
    dtype: str = "auto",
    progress: Progress | None = None,
    adapter: "Adapter | None" = None,
) -> LoadedModel:
    """Load a checkpoint of any kind that ``open_checkpoint`` opens.

    A converted file is mapped and used in place; any other is packed into memory, one tensor at a
    time, so the peak is the packed model plus the largest tensor.

    Args:
        path: the checkpoint.
        dtype: of the big matrices: ``"fp32"``, ``"fp16"``, ``"bf16"``, ``"int8"``, or ``"auto"``:
            as they are stored.
        progress: called after each tensor that had to be packed.
        adapter: to merge into the weights.

    Raises:
        FileError: the system refuses, or the file changed meanwhile.
        FormatError: the file is damaged, or tensors are missing, surplus, or of a wrong shape.
        UnsupportedError: another container, family or element type.
        InvalidArgumentError: an unknown `dtype`, or not the one of a converted file.
        OutOfMemoryError: the packed model does not fit.
        Of an adapter, the same: see ``MergedSource``.
    """
    with open_model(path, adapter) as source:
        if source.kind == "wkvm packed":
            with naming(source.path):
                model = Model.open(source.path, dtype)
        else:
            builder = new_builder(source, dtype)
            total = sum(
                tensor.n_bytes for i, tensor in enumerate(source.tensors) if builder.needs(i)
            )
            done = 0
            for index, tensor in enumerate(source.tensors):
                if builder.needs(index):
                    with naming(source.path):
                        builder.add(index, source.read(index))
                    source.evict(index)
                    done += tensor.n_bytes
                    if progress is not None:
                        progress(done, total)
            model = builder.finish()
        source.check_unchanged()
        return LoadedModel(
            model,
            source.path.absolute(),
            source.kind,
            source.metadata,
            policy_defaults(source),
            source.identity,
            adapter,
        )


def new_builder(source: Source, dtype: str) -> ModelBuilder:
    """A builder that has checked all of a source's tensors and holds none of their data yet.

    Raises:
        FormatError, UnsupportedError, InvalidArgumentError: as ``load_model`` does; the message
            names the file.
    """
    refuse_variants(source.path, (tensor.name for tensor in source.tensors))
    with naming(source.path):
        return ModelBuilder(list(source.tensors), dtype)


def model_info(source: Source) -> dict[str, Any]:
    """Shapes, blocks and sizes of a checkpoint as it would be loaded; packs nothing.

    Raises:
        FormatError, UnsupportedError: as ``load_model`` does.
    """
    if source.kind != "wkvm packed":
        return new_builder(source, "auto").info()
    with naming(source.path):
        return Model.open(source.path).info()


def lora_ranks(tensors: Sequence[TensorInfo], n_rwkv: int) -> dict[str, list[int]]:
    """The distinct ranks of the LoRA pairs w, a, v and g, of which each block has its own."""
    ranks: dict[str, set[int]] = {}
    for tensor in tensors:
        match = re.search(r"blocks\.(\d+)\.att\.([wavg])1$", tensor.name)
        if match and int(match[1]) < n_rwkv:  # one that runs
            ranks.setdefault(match[2], set()).add(tensor.shape[-1])  # [D, rank]
    return {name: sorted(ranks[name]) for name in "wavg" if name in ranks}


def policy_defaults(source: Source) -> dict[str, int | float]:
    """Options of the attention policies in a file's metadata: name in ``POLICY_KEYS`` -> value.

    Raises:
        FormatError: a value is not a number in the option's range, or two options exclude each
            other.
    """
    defaults: dict[str, int | float] = {}
    for key, (low, high) in POLICY_KEYS.items():
        text = source.metadata.get(f"wkvm.{key}")
        if text is None:
            continue
        is_whole = isinstance(low, int)
        value: int | float | None = None
        if (_WHOLE if is_whole else _DECIMAL).fullmatch(text):
            value = int(text) if is_whole else float(text)
        if value is None or not is_policy_option(key, value):
            raise FormatError(
                f"{source.path}: the metadata entry wkvm.{key} is {shown(text)!r}, not a "
                f"{'whole ' if is_whole else ''}number {'from' if is_whole else 'above'} {low} to "
                f"{high}; convert the original again"
            )
        defaults[key] = value
    if defaults.keys() >= _ALTERNATIVES:
        raise FormatError(
            f"{source.path}: the metadata has both wkvm.memory_keep_tokens and "
            "wkvm.memory_keep_ratio; convert the original again"
        )
    return defaults


def merge_options(
    recorded: Mapping[str, int | float], given: Mapping[str, int | float]
) -> dict[str, int | float]:
    """The policy options that are given, and those of a file that they do not replace.

    Raises:
        InvalidArgumentError: two of those given exclude each other.
    """
    if given.keys() >= _ALTERNATIVES:
        raise InvalidArgumentError("give memory_keep_tokens or memory_keep_ratio, not both")
    replaced = _ALTERNATIVES if given.keys() & _ALTERNATIVES else set()
    return {k: v for k, v in recorded.items() if k not in replaced} | dict(given)


def is_policy_option(name: str, value: int | float) -> bool:
    """Whether a file may recommend this: a name in ``POLICY_KEYS``, and a value in its range."""
    if name not in POLICY_KEYS or isinstance(value, bool):
        return False
    low, high = POLICY_KEYS[name]
    if isinstance(low, int):
        return isinstance(value, int) and low <= value <= high
    return isinstance(value, int | float) and low < value <= high


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's path in front of native messages that do not know it."""
    try:
        yield
    except InvalidArgumentError:
        raise  # speaks of an argument, not of the file
    except WkvmError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
