# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The engine over wkvm.h: handles, zero-copy NumPy, the interpreter lock released."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stddef cimport size_t

cimport numpy as cnp
import numpy as np

from wkvm import errors

cnp.import_array()

cdef extern from "wkvm.h" nogil:
    ctypedef int wkvm_status
    wkvm_status wkvm_last_error(const char** out)


cdef int check(wkvm_status status) except -1:
    """Raise the error class of a failed status, with the calling thread's last message."""
    cdef const char* message
    if status == 0:
        return 0
    wkvm_last_error(&message)
    raise errors.BY_STATUS[status](message.decode("utf-8", "replace"))
