"""One hierarchy of errors, mirrored from the status codes of ``native/include/wkvm.h``."""


class WkvmError(Exception):
    """Base of every error that wkvm raises on purpose; the message says what, where, what to do."""


class InvalidArgumentError(WkvmError, ValueError):
    """A value that no caller may pass: a bad token id, an unknown option, a wrong shape."""


class FileError(WkvmError, OSError):
    """The operating system refused: a missing file, no permission, a full disk."""


class FormatError(WkvmError):
    """A file or buffer that is not what it claims to be."""


class UnsupportedError(WkvmError):
    """Well formed, but nothing that this build or machine can run."""


class OutOfMemoryError(WkvmError, MemoryError):
    """Memory for a model, a slot or a buffer could not be had."""


class CacheFullError(WkvmError):
    """The tokens would grow a KV cache beyond ``max_cache_len``."""


class NoSlotError(WkvmError):
    """Every slot of the engine is in use."""


class NumericError(WkvmError):
    """A non-finite activation, or a key or value that float16 cannot hold."""


class StateMismatchError(WkvmError):
    """A state that does not belong to this model, policy or KV type."""


class ClosedError(WkvmError):
    """The session or model has been closed."""


class InternalError(WkvmError):
    """A bug in wkvm; please report it."""


#: Status code of ``wkvm_status`` -> class. Index 0 is success.
BY_STATUS: tuple[type[WkvmError] | None, ...] = (
    None,
    InvalidArgumentError,
    FileError,
    FormatError,
    UnsupportedError,
    OutOfMemoryError,
    CacheFullError,
    NoSlotError,
    NumericError,
    StateMismatchError,
    InternalError,
)
