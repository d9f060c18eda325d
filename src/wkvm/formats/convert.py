"""``wkvm convert``: a checkpoint of any kind becomes one packed, mapped file."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from wkvm._engine import Tokenizer
from wkvm.errors import FileError, InvalidArgumentError
from wkvm.formats.fingerprint import DIGEST_KEY, WeightsDigest, by_name, remember_digest
from wkvm.formats.load import (
    is_policy_option,
    merge_options,
    naming,
    new_builder,
    policy_defaults,
)
from wkvm.formats.open import open_model
from wkvm.formats.safetensors import PACKED_KEY
from wkvm.formats.source import Source, TensorInfo
from wkvm.formats.vocabulary import VOCAB_KEY, recorded_tokenizer, vocabulary_text
from wkvm.formats.write import OutTensor, check_target, write_safetensors

if TYPE_CHECKING:
    from wkvm.formats.adapter import Adapter

#: Called with ("packing" or "writing", bytes done, bytes in all).
StagedProgress = Callable[[str, int, int], None]


def convert_checkpoint(
    source_path: str | Path,
    target_path: str | Path,
    *,
    dtype: str = "auto",
    policy: Mapping[str, int | float] = MappingProxyType({}),
    vocab: str | Path | None = None,
    adapter: "Adapter | None" = None,
    overwrite: bool = False,
    progress: StagedProgress | None = None,
) -> None:
    """Pack a checkpoint once and for all: opening the result is a map plus a check.

    The peak of memory is the size of the result plus the largest tensor.

    Args:
        source_path: any checkpoint that ``open_checkpoint`` opens and that is not converted yet.
        target_path: the ``.safetensors`` file to make.
        dtype: of the big matrices, as in ``load_model``.
        policy: options of the attention policies to recommend, names and ranges as in
            ``load.POLICY_KEYS``; those that are not given are taken over from the source.
        vocab: a vocabulary file to put into the result; None: what the source holds of one.
        adapter: to merge into the weights.
        overwrite: replace the target if it exists.
        progress: called after each tensor.

    Raises:
        FileError: the system refuses, the target exists, or is the source.
        InvalidArgumentError: an unknown `dtype` or policy option, a `vocab` with ids that the model
            lacks, or a converted source.
        FormatError, UnsupportedError, OutOfMemoryError: as ``load_model`` does.
    """
    target = Path(target_path)
    with open_model(source_path, adapter) as source:
        check_target(target, overwrite)
        refuse_own_file(target, source)
        if source.kind == "wkvm packed":
            raise InvalidArgumentError(f"{source.path} is converted already; convert the original")
        builder = new_builder(source, dtype)
        metadata = {"format": "wkvm"}
        metadata |= recommendations(source, builder.info()["n_vocab"], policy, vocab)
        digest = WeightsDigest()
        total = sum(tensor.n_bytes for tensor in source.tensors)
        done = 0
        for index in by_name(source):
            data = source.read(index)
            digest.add(source.tensors[index], data)
            if builder.needs(index):
                with naming(source.path):
                    builder.add(index, data)
            del data  # before the next one is read
            source.evict(index)
            done += source.tensors[index].n_bytes
            if progress is not None:
                progress("packing", done, total)
        model = builder.finish()
        source.check_unchanged()
        remember_digest(source.identity, digest.hexdigest())
    metadata[DIGEST_KEY] = digest.hexdigest()
    metadata[PACKED_KEY] = model.packed_header()
    write_safetensors(
        target,
        [
            OutTensor(TensorInfo(name, element_type, shape), partial(np.asarray, data))
            for name, element_type, shape, data in model.tensors()
        ],
        metadata,
        overwrite=overwrite,
        progress=None if progress is None else lambda n, of: progress("writing", n, of),
    )


def recommendations(
    source: Source, n_vocab: int, policy: Mapping[str, int | float], vocab: str | Path | None
) -> dict[str, str]:
    """The entries of metadata with which a checkpoint recommends how it is to be run.

    Args:
        source: recommends what is not given.
        n_vocab: rows of its head, V.
        policy: as in ``convert_checkpoint``.
        vocab: likewise.

    Raises:
        FileError, FormatError, InvalidArgumentError: as ``convert_checkpoint`` does.
    """
    metadata = {}
    for key, value in merge_options(policy_defaults(source), policy).items():
        if not is_policy_option(key, value):
            raise InvalidArgumentError(f"policy option {key}={value} cannot be recorded")
        metadata[f"wkvm.{key}"] = str(value)
    if vocab is not None:
        metadata[VOCAB_KEY] = vocabulary_text(vocab, n_vocab)
    elif recorded_tokenizer(source.path, source.metadata, n_vocab, Tokenizer) is not None:
        metadata[VOCAB_KEY] = source.metadata[VOCAB_KEY]
    return metadata


def refuse_own_file(target: Path, source: Source) -> None:
    """Raise FileError if a file to write is one that an open checkpoint consists of."""
    if any(_is_same_file(target, file) for file in (*source.files, source.path)):
        raise FileError(f"{target} is the checkpoint itself; name another file")


def _is_same_file(target: Path, file: Path) -> bool:
    try:
        return target.samefile(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror}") from error
