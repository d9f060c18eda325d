"""RWKV-7 and RWKV-X inference whose states are objects: snapshot, fork, resume, bit for bit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wkvm._version import version as __version__
from wkvm.errors import WkvmError

if TYPE_CHECKING:
    from wkvm.bundled import bundled_model_path
    from wkvm.formats.adapter import Adapter
    from wkvm.formats.init_state import InitState
    from wkvm.hypervisor.model import Model, load
    from wkvm.hypervisor.sampling import SamplingOptions
    from wkvm.hypervisor.session import Session
    from wkvm.hypervisor.snapshot import Snapshot
    from wkvm.text.tokenizer import Tokenizer

__all__ = [
    "Adapter",
    "InitState",
    "Model",
    "SamplingOptions",
    "Session",
    "Snapshot",
    "Tokenizer",
    "WkvmError",
    "__version__",
    "bundled_model_path",
    "load",
]

#: Name -> the module that defines it, imported when it is first used: a command that needs
#: neither NumPy nor the engine (``wkvm --help``) starts without them.
_HOMES = {
    "Adapter": "wkvm.formats.adapter",
    "InitState": "wkvm.formats.init_state",
    "Model": "wkvm.hypervisor.model",
    "SamplingOptions": "wkvm.hypervisor.sampling",
    "Session": "wkvm.hypervisor.session",
    "Snapshot": "wkvm.hypervisor.snapshot",
    "Tokenizer": "wkvm.text.tokenizer",
    "bundled_model_path": "wkvm.bundled",
    "load": "wkvm.hypervisor.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wkvm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
