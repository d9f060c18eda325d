"""What a model is, as a digest: so that a state never meets another model's weights."""

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from wkvm.errors import FormatError
from wkvm.formats.source import Bytes, Identity, Source, TensorInfo

#: Metadata entry of a converted file: the digest of the tensors it was made from.
DIGEST_KEY = "wkvm.weights_sha256"

_MAX_ENTRIES = 256  # of the cache; the oldest go


class WeightsDigest:
    """SHA-256 over tensors that come one at a time, sorted by name."""

    def __init__(self) -> None:
        """A digest of no tensors yet."""
        self._hash = hashlib.sha256(b"wkvm weights 1\n")

    def add(self, info: TensorInfo, data: Bytes) -> None:
        """Add one tensor: name, element type, shape and bytes, each of them delimited."""
        name = info.name.encode()
        kind = f"{info.dtype} {','.join(map(str, info.shape))}\n".encode()
        self._hash.update(b"%d:%b %b" % (len(name), name, kind))
        self._hash.update(data.data)

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()


def by_name(source: Source) -> list[int]:
    """Indices of a source's tensors in the order in which they are digested."""
    return sorted(range(len(source.tensors)), key=lambda i: source.tensors[i].name)


def weights_digest(source: Source, *, use_cache: bool = True) -> str:
    """SHA-256 over all tensors of a checkpoint under their canonical names, 64 hex digits.

    A ``.pth``, a ``.safetensors`` and shards of the same tensors agree. A converted file agrees
    with its original: the digest was recorded in it. Any other file is read once, and the result
    kept in the user's cache folder under the files' device, inode, size and time.

    Args:
        source: an open checkpoint.
        use_cache: False reads the file even if its digest is known.

    Raises:
        FormatError: a converted file that does not carry its digest, or a damaged one.
        FileError: the system refuses, or the file changed meanwhile.
    """
    if source.kind == "wkvm packed":
        return recorded_digest(source.path, source.metadata)
    digest = _read_cache(source.identity) if use_cache else None
    if digest is None:
        running = WeightsDigest()
        for index in by_name(source):
            running.add(source.tensors[index], source.read(index))
            source.evict(index)
        digest = running.hexdigest()
        source.check_unchanged()
        remember_digest(source.identity, digest)
    source.check_unchanged()
    return digest


def recorded_digest(path: Path, metadata: Mapping[str, str]) -> str:
    """The digest that ``wkvm convert`` wrote into the metadata of the file `path`.

    Raises:
        FormatError: there is none.
    """
    digest = metadata.get(DIGEST_KEY, "")
    if not _is_digest(digest):
        raise FormatError(
            f"{path} does not say which weights it was made from ({DIGEST_KEY}); convert "
            "the original again"
        )
    return digest


def model_fingerprint(weights: str, dtype: str, vocab: str) -> str:
    """What a state must match: SHA-256 over weights, arithmetic and vocabulary, 64 hex digits.

    Args:
        weights: what ``weights_digest`` returned.
        dtype: of the big matrices as they run: ``"fp32"``, ``"fp16"``, ``"bf16"`` or ``"int8"``.
        vocab: a digest of the vocabulary.
    """
    return hashlib.sha256(f"wkvm model 1\n{weights}\n{dtype}\n{vocab}\n".encode()).hexdigest()


def remember_digest(identity: Identity, digest: str) -> None:
    """Keep a digest in the cache, if its folder can be written."""
    folder = _cache_folder()
    if folder is None:
        return
    temporary = folder / f"{os.urandom(8).hex()}.tmp"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(digest)
            temporary.replace(folder / _entry_name(identity))
        finally:
            temporary.unlink(missing_ok=True)
        _prune(folder)


def _prune(folder: Path) -> None:
    """Remove the oldest entries beyond those that are kept."""
    entries = sorted((entry.stat().st_mtime_ns, entry) for entry in folder.iterdir())
    for _, entry in entries[:-_MAX_ENTRIES]:
        entry.unlink(missing_ok=True)


def _read_cache(identity: Identity) -> str | None:
    folder = _cache_folder()
    if folder is None:
        return None
    try:
        with (folder / _entry_name(identity)).open() as file:
            digest = file.read(65)
    except (OSError, ValueError):
        return None
    return digest if _is_digest(digest) else None


def _cache_folder() -> Path | None:
    """The folder of cached digests; None for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):  # empty, or ignored: the XDG specification asks for absolute paths
        root = os.path.expanduser("~/.cache")  # stays as it is without HOME and passwd entry
    return Path(root, "wkvm", "weights") if os.path.isabs(root) else None


def _entry_name(identity: Identity) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def _is_digest(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{64}", text) is not None
