"""Makes PyTorch .pth files for tests, right and wrong ones, opcode by opcode and without torch."""

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

STORAGES = {
    "f64": "DoubleStorage",
    "f32": "FloatStorage",
    "f16": "HalfStorage",
    "bf16": "BFloat16Storage",
    "i64": "LongStorage",
    "i32": "IntStorage",
    "i16": "ShortStorage",
    "i8": "CharStorage",
    "u8": "ByteStorage",
    "bool": "BoolStorage",
}

#: Bytes of one element.
SIZES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2}
SIZES |= dict.fromkeys(("i8", "u8", "bool"), 1)


@dataclass
class View:
    """A tensor as a pickle describes it: a view of `n` elements in the member data/<key>."""

    dtype: str
    key: str
    n: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None  # None: C order
    offset: int = 0

    def pickled(self) -> bytes:
        strides = self.strides
        if strides is None:
            steps, step = [], 1
            for length in reversed(self.shape):
                steps.append(step)
                step *= length
            strides = tuple(reversed(steps))
        storage = tuple_(
            text("storage"),
            global_("torch", STORAGES[self.dtype]),
            text(self.key),
            text("cpu"),
            integer(self.n),
        )
        hooks = global_("collections", "OrderedDict") + b")R"
        return call(
            global_("torch._utils", "_rebuild_tensor_v2"),
            storage + b"Q",
            integer(self.offset),
            tuple_(*map(integer, self.shape)),
            tuple_(*map(integer, strides)),
            b"\x89",  # requires_grad
            hooks,
        )


def text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def tuple_(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def global_(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_(*arguments) + b"R"


def dict_(items: dict[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(name) + value for name, value in items.items()) + b"u"


def program(*body: bytes) -> bytes:
    return b"\x80\x02" + b"".join(body) + b"."


def write(
    path: Path,
    pickle: bytes | dict[str, View],
    storages: dict[str, bytes],
    *,
    root: str = "archive/",
    byteorder: bytes | None = b"little",
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """A .pth of a pickle (or of tensors to pickle as a dict) and its storages."""
    if isinstance(pickle, dict):
        pickle = program(dict_({name: view.pickled() for name, view in pickle.items()}))
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(root + "data.pkl", pickle)
        if byteorder is not None:
            archive.writestr(root + "byteorder", byteorder)
        for key, data in storages.items():
            archive.writestr(f"{root}data/{key}", data)
        archive.writestr(root + "version", b"3\n")
    return path


def write_checkpoint(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """A .pth of name -> (type as in safetensors, shape, bytes)."""
    views, storages = {}, {}
    for i, (name, (dtype, shape, data)) in enumerate(tensors.items()):
        views[name] = View(dtype.lower(), str(i), len(data) // SIZES[dtype.lower()], shape)
        storages[str(i)] = data
    return write(path, views, storages)
