"""web-rwkv's and Ai00's ``.st``: BlinkDL's names, float16, every LoRA matrix transposed.

No name and no metadata says so, only the shapes: a first factor is [rank, D] instead of [D, rank].
"""

from wkvm.errors import FormatError
from wkvm.formats.mapped import Entry, MappedSource
from wkvm.formats.names import SPELLING_KEY, is_lora_matrix
from wkvm.formats.source import Source, TensorInfo


def is_webrwkv(raw: Source) -> bool:
    """Whether a source is a ``.safetensors`` file whose LoRA matrices are transposed.

    One matrix that is not square decides for all of them. If all are square, only the types can
    tell: web-rwkv writes nothing but float16. wkvm says of what it exports that it is not.

    Raises:
        FormatError: neither shapes nor types tell.
    """
    if raw.kind != "safetensors" or SPELLING_KEY in raw.metadata:
        return False
    shapes = {tensor.name: tensor.shape for tensor in raw.tensors}
    factors = [name for name in shapes if is_lora_matrix(name) and len(shapes[name]) == 2]
    if not factors or len(shapes.get("emb.weight", ())) != 2:
        return False
    for name in factors:
        rows, columns = shapes[name]
        if rows != columns:
            return shapes["emb.weight"][1] == (columns if name.endswith("1") else rows)
    if {tensor.dtype for tensor in raw.tensors} != {"f16"}:
        return False
    raise FormatError(
        f"{raw.path}: all its LoRA matrices are square and all its tensors float16, so nothing "
        "tells whether they lie as BlinkDL has them or, transposed, as web-rwkv does; open the "
        ".pth that it was made from"
    )


def open_webrwkv(raw: Source) -> Source:
    """A source that `is_webrwkv`, as ours."""
    return MappedSource(raw, f"web-rwkv {raw.kind}", map(_entry, raw.tensors))


def _entry(tensor: TensorInfo) -> Entry:
    if is_lora_matrix(tensor.name):
        swapped = tuple(reversed(tensor.shape))
        return Entry(tensor.name, swapped, tensor.name, is_transposed=True)
    return Entry(tensor.name, tensor.shape, tensor.name)
