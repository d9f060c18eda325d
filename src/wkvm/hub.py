"""Checkpoints of the Hugging Face hub, fetched into its standard cache; no terminal in it.

``huggingface_hub`` knows the addresses, the tokens, the errors and the place of the cache. Its own
download begins a file anew after an interruption, and compares no checksum over plain HTTP, so the
bytes are received here and enter the cache once they are checked. The layout of the cache is public
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache), and other programs share it::

    models--OWNER--NAME/blobs/DIGEST             a file's bytes
                       /snapshots/COMMIT/FILE    a link to them
                       /refs/REVISION            the commit that a branch or tag was last seen at
"""

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from wkvm.errors import FileError, FormatError, InvalidArgumentError, UnsupportedError, WkvmError
from wkvm.formats.safetensors import read_weight_map
from wkvm.formats.source import shown

try:
    from huggingface_hub import (
        HfApi,
        constants,
        get_session,
        get_token,
        hf_hub_url,
        hf_raise_for_status,
    )
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
except ImportError as error:
    raise UnsupportedError(
        f"the package huggingface_hub, which talks to the hub, is missing or too old ({error}): "
        "pip install 'wkvm[hub]'"
    ) from error

#: Called with (what is being done, bytes done, bytes in all).
Show = Callable[[str, int, int], None]

_INDEX = ".safetensors.index.json"
_CHECKPOINTS = (".pth", ".safetensors", ".gguf", ".st", _INDEX)
# What may be fetched, by its name's end: no code, and no pickles but .pth, which wkvm never runs.
# A .bin may be rwkv.cpp's or a pickle; names do not tell.
_FETCHABLE = (*_CHECKPOINTS, ".json", ".txt")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")

# Failures of the network, in whichever version of httpx the library uses.
_TransportError: type[Exception] = HfHubHTTPError.__bases__[0]
_MAX_FAILURES = 5  # in a row without a byte received, until a transfer is given up
_SERVER_ERRORS = range(500, 600)  # of HTTP
_PASSING_ERRORS = {408, 429, *_SERVER_ERRORS}
_PAUSE = 1.0  # seconds before the next try
_CHUNK = 1 << 20  # bytes


class HubFile(NamedTuple):
    """A file of a repository.

    Attributes:
        name: relative to the repository, checked to be a plain path.
        size: in bytes.
        digest: SHA-256 of a file in large file storage, 64 digits; of any other its id in git, 40
            digits; empty if only the cache was asked.
    """

    name: str
    size: int
    digest: str


class Repository:
    """One commit of a repository: the files that wkvm may fetch of it, and where they go.

    Attributes:
        name: as ``OWNER/NAME``.
        files: by name.
        offline: why only the cache was asked; None if the hub answered.
    """

    def __init__(
        self, name: str, revision: str, commit: str, files: list[HubFile], offline: str | None
    ) -> None:
        """See the attributes; `commit` is what `revision` stands for."""
        self.name = name
        self.files = {file.name: file for file in files}
        self.offline = offline
        self._revision = revision
        self._commit = commit
        self._folder = _folder(name)

    def checkpoints(self) -> list[HubFile]:
        """What a model can be loaded from, by name; an index, with their size, for its shards."""
        found = []
        for file in self.files.values():
            if file.name.endswith(_INDEX):
                shards = self.files.values()
                size = sum(s.size for s in shards if _SHARD.search(s.name) and _beside(s, file))
                found.append(file._replace(size=size))
            elif file.name.endswith(_CHECKPOINTS) and not self._is_shard(file):
                found.append(file)
        return sorted(found)

    def fetch(self, name: str, show: Show) -> Path:
        """The path of a file in the cache, into which it is fetched if it is not there.

        A shard index brings its shards along, and a ``.safetensors`` file or an index the
        ``config.json`` beside it. What an earlier call has received is not received again. Every
        file that is received is compared with the hub's checksum before it enters the cache; of
        one that is there already, the size is.

        Args:
            name: one of `files`.
            show: is told of the progress.

        Raises:
            InvalidArgumentError: there is no such file.
            FormatError: a file has another checksum than the hub says, or an index is wrong.
            FileError: access is refused, the connection breaks for good, the disk is or would be
                full; or the file is not in the cache, and only that was asked.
        """
        first = self._find(name)
        with self._errors(name):
            self._obtain([first], show)
            path = self._path(first)
            folder = PurePosixPath(name).parent
            others = []
            if name.endswith(_INDEX):
                others = [self._shard(folder, shard) for shard in read_weight_map(path).values()]
            config = self.files.get(str(folder / "config.json"))
            if name.endswith((_INDEX, ".safetensors")) and config is not None:
                others.append(config)
            self._obtain(sorted(set(others)), show)
        if self.offline is None and self._revision != self._commit:
            with suppress(OSError):  # a cache that may only be read, and then holds all files
                _write_ref(self._folder / "refs" / self._revision, self._commit)
        return path

    def _find(self, name: str) -> HubFile:
        if name in self.files:
            return self.files[name]
        if not _is_plain(name):
            raise InvalidArgumentError(f"{shown(name)} is not a plain relative path")
        if not name.endswith(_FETCHABLE):
            ends = ", ".join(_FETCHABLE)
            raise InvalidArgumentError(
                f"{self.name}: {shown(name)} is not of a kind that wkvm fetches: {ends}"
            )
        if self.offline is not None:
            raise FileError(
                f"{self.name}: {shown(name)} is not in the cache {self._folder}, and the hub was "
                f"not asked: {self.offline}"
            )
        raise InvalidArgumentError(
            f"{self.name} has no file {shown(name)} at revision {self._revision}: wkvm pull "
            f"{self.name} finds its checkpoints"
        )

    def _shard(self, folder: PurePosixPath, name: str) -> HubFile:
        """One that an index in `folder` names."""
        try:
            return self._find(str(folder / name))
        except InvalidArgumentError as error:
            raise FormatError(
                f"{self.name}: the index names the shard {name}, which is not in the repository"
            ) from error

    def _is_shard(self, file: HubFile) -> bool:
        """Whether an index stands for it."""
        indices = (f for f in self.files.values() if f.name.endswith(_INDEX))
        return bool(_SHARD.search(file.name)) and any(_beside(file, index) for index in indices)

    def _path(self, file: HubFile) -> Path:
        return self._folder / "snapshots" / self._commit / file.name

    def _obtain(self, files: list[HubFile], show: Show) -> None:
        """Put those that are missing into the cache."""
        missing = [file for file in files if _size(self._path(file)) != file.size]
        if not missing:
            return
        blobs = self._folder / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        with _lock(blobs, lambda: show("waiting for another pull", 0, 0)):
            needed = sum(_lacking(blobs, file) for file in missing)
            free = shutil.disk_usage(blobs).free
            if needed > free:
                raise FileError(
                    f"{self.name} needs {_gb(needed)} more in {self._folder}, where {_gb(free)} "
                    "are free: make room, or set HF_HOME to a folder of another disk"
                )
            for file in missing:
                blob, partial = blobs / file.digest, _partial(blobs, file)
                if _size(self._path(file)) == file.size:  # by another pull, meanwhile
                    continue
                if _size(blob) != file.size:
                    self._download(file, partial, show)
                    os.replace(partial, blob)
                _link(blob, self._path(file))

    def _download(self, file: HubFile, partial: Path, show: Show) -> None:
        """Complete the file `partial`, and check it; it is removed if it is wrong."""
        failures = 0
        with partial.open("ab") as out:
            if out.tell() > file.size:
                _empty(out)
            while out.tell() < file.size:
                before, reason = out.tell(), "the answer ended early"
                try:
                    self._receive(file, out, show)
                except HfHubHTTPError as error:
                    if error.response.status_code not in _PASSING_ERRORS:
                        raise
                    reason = f"the hub answers {error.response.status_code}"
                except _TransportError as error:
                    reason = _reason(error)
                out.flush()
                failures = 0 if out.tell() > before else failures + 1
                if failures == _MAX_FAILURES:
                    raise FileError(
                        f"{self.name}: {file.name} broke off at {out.tell():,} of {file.size:,} "
                        f"bytes: {reason}; pull again to go on from there"
                    )
                if out.tell() < file.size:
                    time.sleep(_PAUSE)
            os.fsync(out.fileno())  # what is in the cache is not compared again
        kind = "SHA-256" if len(file.digest) == 64 else "git id"
        found = _digest(partial, file, show)
        if found != file.digest:
            partial.unlink()
            raise FormatError(
                f"{self.name}: {file.name} arrived with {kind} {found}, and the hub says "
                f"{file.digest}; what arrived was removed: pull again"
            )

    def _receive(self, file: HubFile, out: BinaryIO, show: Show) -> None:
        """Append what `out` lacks, as far as one answer brings it."""
        url = hf_hub_url(self.name, file.name, revision=self._commit)
        headers = {"User-Agent": "wkvm"}
        headers["Accept-Encoding"] = "identity"  # ranges count the file's own bytes
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if out.tell():
            headers["Range"] = f"bytes={out.tell()}-"
        seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=seconds) as answer:
            hf_raise_for_status(answer)
            if answer.status_code != 206:  # the whole file, from its start
                _empty(out)
            for chunk in answer.iter_bytes():  # as they come: a size would lose some in a cut
                if out.tell() + len(chunk) > file.size:
                    _empty(out)
                    raise FormatError(
                        f"{self.name}: {file.name} is larger than the {file.size:,} bytes that the "
                        "hub says: pull again"
                    )
                out.write(chunk)
                show(file.name, out.tell(), file.size)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Ours for the hub's and the system's."""
        with _hub_errors(self.name, self._revision):
            try:
                yield
            except (WkvmError, HfHubHTTPError):
                raise
            except OSError as error:
                raise FileError(
                    f"cannot put {name} into the cache {self._folder}: {error.strerror}"
                ) from error


def open_repository(name: str, revision: str = "main") -> Repository:
    """Ask the hub what a repository holds; if it cannot be reached, its cache.

    Args:
        name: ``OWNER/NAME``.
        revision: a branch, a tag, or a commit of 40 digits.

    Raises:
        InvalidArgumentError: the name or the revision cannot be one.
        FileError: there is no such repository or revision, access is refused, or the hub cannot be
            reached and nothing is cached.
        FormatError: the answer is not a hub's, or lists files with names that are no plain paths.
    """
    if not _is_plain(revision):
        raise InvalidArgumentError(f"{shown(revision)} cannot be a revision")
    try:
        with _hub_errors(name, revision):
            info = HfApi(library_name="wkvm").model_info(
                name,
                revision=revision,
                files_metadata=True,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
            if not re.fullmatch("[0-9a-f]{40}", info.sha or ""):
                raise ValueError("no commit")
            files = [_describe(name, sibling) for sibling in info.siblings or []]
    except HFValidationError as error:
        raise InvalidArgumentError(
            f"{shown(name)} cannot be a repository: write OWNER/NAME, as in BlinkDL/rwkv7-g1"
        ) from error
    except _UnreachableError as error:
        return _cached_repository(name, revision, str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"what {constants.ENDPOINT} answers about {name} is not a hub's answer ({error!r}): "
            "check HF_ENDPOINT, or log in to the network that you are in"
        ) from error
    return Repository(name, revision, str(info.sha), [f for f in files if f is not None], None)


class _UnreachableError(Exception):
    """The hub gave no answer; the message says why."""


@contextmanager
def _hub_errors(name: str, revision: str) -> Iterator[None]:
    """Ours for the hub's."""
    where = f"{constants.ENDPOINT}/{name}"
    token = "a token, in HF_TOKEN or from `hf auth login`"
    try:
        yield
    except GatedRepoError as error:
        raise FileError(
            f"{name} is gated: ask for access at {where}, and give {token}, of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise FileError(
            f"there is no {where}, or it is private: check the name; a private one needs {token}"
        ) from error
    except RevisionNotFoundError as error:
        raise FileError(
            f"{name} has no revision {revision}: name a branch, tag or commit of {where}"
        ) from error
    except EntryNotFoundError as error:
        raise FileError(f"{name} has changed meanwhile: pull again") from error
    except OfflineModeIsEnabled as error:
        raise _UnreachableError("HF_HUB_OFFLINE is set") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in _SERVER_ERRORS:
            raise _UnreachableError(f"{constants.ENDPOINT} answers {status}") from error
        if status in (401, 403):
            raise FileError(f"{where} refuses access ({status}): it needs {token}") from error
        raise FileError(f"{where} cannot be read: the hub answers {status}; try later") from error
    except _TransportError as error:
        raise _UnreachableError(f"no way to {constants.ENDPOINT}: {_reason(error)}") from error


def _describe(name: str, sibling: Any) -> HubFile | None:
    """A file of the hub's list, checked; None for one that wkvm does not fetch."""
    file = str(sibling.rfilename)
    if not file.endswith(_FETCHABLE):
        return None
    if not _is_plain(file):
        raise FormatError(
            f"{name} lists a file {shown(file)}, which is not a plain relative path: nothing of "
            "this repository is fetched"
        )
    size, digest = sibling.size, sibling.blob_id
    if sibling.lfs is not None:
        size, digest = sibling.lfs.size, sibling.lfs.sha256
    length = 40 if sibling.lfs is None else 64
    if not (isinstance(size, int) and size >= 0 and re.fullmatch(f"[0-9a-f]{{{length}}}", digest)):
        raise ValueError(f"no size and checksum of {shown(file)}")
    return HubFile(file, size, digest)


def _cached_repository(name: str, revision: str, reason: str) -> Repository:
    """What is in the cache of a revision."""
    folder, commit = _folder(name), revision
    if not re.fullmatch("[0-9a-f]{40}", revision):
        with suppress(OSError, ValueError):  # ValueError: no UTF-8
            commit = (folder / "refs" / revision).read_text().strip()
    snapshot = folder / "snapshots" / commit
    if not re.fullmatch("[0-9a-f]{40}", commit) or not snapshot.is_dir():
        raise FileError(
            f"{reason}; and the cache {folder} has no revision {revision}: pull it once while the "
            "hub can be reached"
        )
    found = []
    for path in snapshot.rglob("*"):
        file, size = path.relative_to(snapshot).as_posix(), _size(path)
        if size is not None and file.endswith(_FETCHABLE) and _is_plain(file):
            found.append(HubFile(file, size, ""))
    return Repository(name, revision, commit, found, reason)


def _is_plain(path: str) -> bool:
    """Whether it may be joined to a folder: relative, printable, no way up, no other spelling."""
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and not {"", ".", ".."} & set(parts)


def _beside(one: HubFile, other: HubFile) -> bool:
    return PurePosixPath(one.name).parent == PurePosixPath(other.name).parent


def _folder(name: str) -> Path:
    """Of a repository in the cache."""
    return Path(constants.HF_HUB_CACHE).absolute() / f"models--{name.replace('/', '--')}"


def _partial(blobs: Path, file: HubFile) -> Path:
    """Where a file lies until it is complete; `hf cache prune` removes what has this ending."""
    return blobs / f"{file.digest}.wkvm.incomplete"


def _lacking(blobs: Path, file: HubFile) -> int:
    """Bytes of a file that are still to be received."""
    if _size(blobs / file.digest) == file.size:
        return 0
    return max(file.size - (_size(_partial(blobs, file)) or 0), 0)


def _size(path: Path) -> int | None:
    """Of a regular file or a link to one; None if it is none."""
    return path.stat().st_size if path.is_file() else None


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _digest(path: Path, file: HubFile, show: Show) -> str:
    """Of the kind that the hub gives for `file`: SHA-256, or git's id."""
    if len(file.digest) == 64:
        state = hashlib.sha256()
    else:
        state = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as data:
        while chunk := data.read(_CHUNK):
            state.update(chunk)
            show(f"checking {file.name}", data.tell(), file.size)
    return state.hexdigest()


def _link(blob: Path, path: Path) -> None:
    """Make `path` a link to `blob`; where the disk has no links, move it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        os.replace(blob, path)


def _write_ref(ref: Path, commit: str) -> None:
    """Remember which commit a branch or tag stands for."""
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


@contextmanager
def _lock(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Hold `folder` for this process; `wait` is called if another one has it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # On a disk without locks two pulls at once disturb each other, which the checksum shows.
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _reason(error: Exception) -> str:
    """What the network says, in one line."""
    return shown(error) or type(error).__name__
