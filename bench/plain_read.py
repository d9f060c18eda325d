"""The ceiling of a decode: how fast this machine reads memory that no cache holds."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "native/plain_read.c"
N_BYTES = 512 << 20
PASSES = 4  # in one turn


class PlainRead:
    """512 MiB of anonymous memory in 4 KiB pages, and the loop that reads it."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            library_path = Path(scratch) / "plain_read.so"
            compiler = os.environ.get("CC", "cc")
            flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra"]
            subprocess.run([compiler, *flags, SOURCE, "-o", library_path], check=True)
            library = ctypes.CDLL(str(library_path))
        library.plain_read_new.argtypes = [ctypes.c_size_t]
        library.plain_read_new.restype = ctypes.c_void_p
        library.plain_read.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64),
        ]  # fmt: skip
        library.plain_read.restype = ctypes.c_double
        self._read = library.plain_read
        self._memory = library.plain_read_new(N_BYTES)
        if not self._memory:
            sys.exit(f"the system gave no {N_BYTES >> 20} MiB of memory in 4 KiB pages")

    def seconds(self, threads: int) -> float:
        """Seconds per pass over N_BYTES, the mean of one turn of PASSES."""
        total = 0.0
        word_sum = ctypes.c_uint64()
        for _ in range(PASSES):
            seconds = self._read(self._memory, N_BYTES, threads, ctypes.byref(word_sum))
            if seconds < 0:
                sys.exit(f"the plain read could not start {threads} threads")
            expected = 0x0101010101010101 * (N_BYTES // 8) % (1 << 64)
            if word_sum.value != expected:
                sys.exit("the plain read did not read every byte: its sum is wrong")
            total += seconds
        return total / PASSES
