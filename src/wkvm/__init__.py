"""RWKV-7 and RWKV-X inference whose states are objects: snapshot, fork, resume, bit for bit."""

from wkvm._version import version as __version__
from wkvm.errors import WkvmError
from wkvm.hypervisor.model import Model, load
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.hypervisor.session import Session
from wkvm.hypervisor.snapshot import Snapshot
from wkvm.text.tokenizer import Tokenizer

__all__ = [
    "Model",
    "SamplingOptions",
    "Session",
    "Snapshot",
    "Tokenizer",
    "WkvmError",
    "__version__",
    "load",
]
