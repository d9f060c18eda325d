"""From a checkpoint on disk to a native model."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wkvm._engine import Model, ModelBuilder
from wkvm.errors import FileError, FormatError, InvalidArgumentError, WkvmError
from wkvm.formats.fingerprint import weights_digest
from wkvm.formats.open import open_checkpoint
from wkvm.formats.source import Identity, Source, shown

#: Options of the attention policy that travel in our own files' metadata, as ``wkvm.<name>``.
POLICY_KEYS = ("moba_chunk_size", "moba_topk")

#: Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadedModel:
    """A native model and where it came from.

    Attributes:
        model: the packed weights, ready for an engine.
        path: the file or shard index that was opened.
        kind: of the checkpoint; see ``Source.kind``.
        metadata: of the file.
        policy_defaults: options of the attention policy that the file recommends.
        identity: of the files; see ``Source.identity``.
    """

    model: Model
    path: Path
    kind: str
    metadata: Mapping[str, str]
    policy_defaults: Mapping[str, int]
    identity: Identity

    def weights_digest(self, *, use_cache: bool = True) -> str:
        """What ``fingerprint.weights_digest`` says of the file, which may have to be read again.

        Raises:
            FileError: the file is not the one any more that was loaded.
            FormatError: a converted file that does not carry its digest.
        """
        with open_checkpoint(self.path) as source:
            if source.identity != self.identity:
                raise FileError(f"{self.path} changed since it was loaded; load it again")
            return weights_digest(source, use_cache=use_cache)


def load_model(
    path: str | Path, dtype: str = "auto", progress: Progress | None = None
) -> LoadedModel:
    """Load a checkpoint of any kind that ``open_checkpoint`` opens.

    A converted file is mapped and used in place; any other is packed into memory, one tensor at a
    time, so the peak is the packed model plus the largest tensor.

    Args:
        path: the checkpoint.
        dtype: of the big matrices: ``"fp32"``, ``"fp16"``, ``"bf16"``, ``"int8"``, or ``"auto"``:
            as they are stored.
        progress: called after each tensor that had to be packed.

    Raises:
        FileError: the system refuses, or the file changed meanwhile.
        FormatError: the file is damaged, or tensors are missing, surplus, or of a wrong shape.
        UnsupportedError: another container, family or element type.
        InvalidArgumentError: an unknown `dtype`, or not the one of a converted file.
        OutOfMemoryError: the packed model does not fit.
    """
    with open_checkpoint(path) as source:
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
            source.path,
            source.kind,
            source.metadata,
            policy_defaults(source),
            source.identity,
        )


def new_builder(source: Source, dtype: str) -> ModelBuilder:
    """A builder that has checked all of a source's tensors and holds none of their data yet.

    Raises:
        FormatError, UnsupportedError, InvalidArgumentError: as ``load_model`` does; the message
            names the file.
    """
    with naming(source.path):
        return ModelBuilder(list(source.tensors), dtype)


def policy_defaults(source: Source) -> dict[str, int]:
    """Options of the attention policy in a file's metadata: name in ``POLICY_KEYS`` -> value.

    Raises:
        FormatError: a value is not a whole number from 1 to 2**31 - 1.
    """
    defaults = {}
    for key in POLICY_KEYS:
        text = source.metadata.get(f"wkvm.{key}")
        if text is None:
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 1 << 31):
            raise FormatError(
                f"{source.path}: the metadata entry wkvm.{key} is {shown(text)!r}, not a whole "
                "number from 1 on; convert the original again"
            )
        defaults[key] = int(text)
    return defaults


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
