"""GGUF, llama.cpp's files, of the architecture ``rwkv7``.

All of it is little-endian: ``GGUF``, version (u32), number of tensors and of metadata entries
(u64). A metadata entry is a key, a type (u32) and a value, a tensor a name, the number of its sides
(u32), the sides (u64, that of a row first), a type (u32) and an offset (u64) into the data, which
begin at the next multiple of the alignment. A text is its length in bytes (u64) and UTF-8.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from wkvm.errors import FormatError, UnsupportedError
from wkvm.formats import ggml
from wkvm.formats.ggml import GgmlSource, Scanner, StoredTensor, StoredType
from wkvm.formats.hf import LAYER_NORM_EPS
from wkvm.formats.mapped import Entry, MappedSource, entry_of
from wkvm.formats.source import Source, shown

ARCHITECTURE = "rwkv7"

_VERSIONS = (2, 3)  # of the same layout; 3 adds files of big-endian machines
_MAX_HEADER = 100_000_000  # bytes before the tensors' data; the largest vocabularies take 10 MB

#: Type of a metadata value -> struct's letter. 8 is a text, 9 an array.
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_TEXT, _ARRAY = 8, 9

_TYPES = {
    0: ggml.F32,
    1: ggml.F16,
    2: ggml.Q4_0,
    3: ggml.Q4_1,
    6: ggml.Q5_0,
    7: ggml.Q5_1,
    8: ggml.Q8_0,
    30: ggml.BF16,
}

#: Types that wkvm does not read.
_OTHER_TYPES = {
    **{9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S"},
    **{22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"},
}

#: Their name -> canonical, outside the blocks.
_OUTER_NAMES = {
    "token_embd.weight": "emb.weight",
    "token_embd_norm.weight": "blocks.0.ln0.weight",
    "token_embd_norm.bias": "blocks.0.ln0.bias",
    "output_norm.weight": "ln_out.weight",
    "output_norm.bias": "ln_out.bias",
    "output.weight": "head.weight",
}

#: The same behind ``blk.N.`` and ``blocks.N.``.
_BLOCK_NAMES = {
    **{f"attn_norm.{part}": f"ln1.{part}" for part in ("weight", "bias")},
    **{f"attn_norm_2.{part}": f"ln2.{part}" for part in ("weight", "bias")},
    **{f"time_mix_ln.{part}": f"att.ln_x.{part}" for part in ("weight", "bias")},
    **{f"time_mix_{gate}0.weight": f"att.{gate}0" for gate in "wav"},
    **{f"time_mix_{gate}{i}.weight": f"att.{gate}{i}" for gate in "wavg" for i in "12"},
    **{f"time_mix_{name}.weight": f"att.{name}" for name in ("k_k", "k_a", "r_k")},
    **{
        f"time_mix_{name}.weight": f"att.{name}.weight"
        for name in ("receptance", "key", "value", "output")
    },
    "channel_mix_lerp_k.weight": "ffn.x_k",
    "channel_mix_key.weight": "ffn.key.weight",
    "channel_mix_value.weight": "ffn.value.weight",
}

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", re.ASCII)
_FUSED = "time_mix_lerp_fused.weight"  # [6, 1, 1, D]: x_r, x_w, ...

#: Key of the metadata behind ``rwkv7.`` -> end of a tensor's name, and which of its sides it is.
_STATED = {
    "vocab_size": ("token_embd.weight", 0),
    "embedding_length": ("token_embd.weight", 1),
    "feed_forward_length": ("channel_mix_key.weight", 0),
    "attention.decay_lora_rank": ("time_mix_w1.weight", 0),
    "attention.iclr_lora_rank": ("time_mix_a1.weight", 0),
    "attention.value_residual_mix_lora_rank": ("time_mix_v1.weight", 0),
    "attention.gate_lora_rank": ("time_mix_g1.weight", 0),
}


class GgufSource(GgmlSource):
    """A GGUF file under the names that it has.

    Attributes:
        numbers: every number and flag in the metadata, by key.
        lengths: of every list in the metadata, by key.
    """

    def __init__(self, path: Path) -> None:
        """Read header and metadata, and where the tensors lie.

        Raises:
            FileError: the system refuses.
            FormatError: the file is damaged.
            UnsupportedError: another version, architecture, or type of a tensor.
        """
        self.numbers: dict[str, int | float] = {}
        self.lengths: dict[str, int] = {}
        super().__init__(path, "GGUF")

    def _scan(self, scanner: Scanner) -> list[StoredTensor]:
        scanner.end = min(scanner.end, _MAX_HEADER)
        scanner.skip(4, "the header")  # which open.py has looked at
        _check_version(scanner, scanner.number(4, "the header"))
        n_tensors = scanner.number(8, "the header")
        n_entries = scanner.count(scanner.number(8, "the header"), "metadata entries")
        architecture: str | None = None
        seen: set[str] = set()
        for _ in range(n_entries):
            key = scanner.name(scanner.number(8, "a key"), "a key")
            if key in seen:
                raise scanner.damaged(f"its metadata have {shown(key)} twice")
            seen.add(key)
            text = self._value(scanner, key)
            if key == "general.architecture":
                architecture = text
        if architecture != ARCHITECTURE:
            raise _wrong_architecture(scanner, architecture)
        if self.numbers.get("split.count", 0) > 1:
            raise UnsupportedError(
                f"{self.path} is one part of a model of several files; join them with "
                "`llama-gguf-split --merge`"
            )
        return self._tensors(scanner, scanner.count(n_tensors, "tensors"))

    def _value(self, scanner: Scanner, key: str) -> str | None:
        """Read the value of a metadata entry; a text is returned if it is no longer than a name."""
        what = f"the metadata entry {shown(key)}"
        kind = scanner.number(4, what)
        if kind == _TEXT:
            n = scanner.number(8, what)
            if key == "general.architecture":
                return scanner.name(n, what)
            scanner.skip(n, what)
        elif kind == _ARRAY:
            kind, n = scanner.number(4, what), scanner.number(8, what)
            self.lengths[key] = n
            if kind == _TEXT:
                scanner.skip_texts(n, what)
            else:
                scanner.skip(n * struct.calcsize(_letter(scanner, kind, what)), what)
        else:
            letter = "<" + _letter(scanner, kind, what)
            (self.numbers[key],) = struct.unpack(
                letter, scanner.take(struct.calcsize(letter), what)
            )
        return None

    def _tensors(self, scanner: Scanner, n: int) -> list[StoredTensor]:
        """Read the descriptions of `n` tensors, which must follow each other without gaps."""
        alignment = self.numbers.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment.bit_count() != 1:
            raise scanner.damaged(f"its general.alignment is {alignment}, not a power of two")
        described: dict[str, tuple[StoredType, list[int], int]] = {}
        for _ in range(n):
            name = scanner.name(scanner.number(8, "a tensor's name"), "a tensor's name")
            what = f"the description of tensor {shown(name)}"
            if name in described:
                raise scanner.damaged(f"it has two tensors {shown(name)}")
            n_sides = scanner.count(scanner.number(4, what), f"sides of tensor {shown(name)}")
            sides = [scanner.number(8, what) for _ in range(n_sides)]
            kind = _stored_type(self.path, name, scanner.number(4, what))
            described[name] = kind, sides, scanner.number(8, what)
        begin = _up(scanner.at, alignment)
        at = end = 0
        found = []
        for name, (kind, sides, offset) in described.items():
            if offset != at:
                raise scanner.damaged(
                    f"the data of tensor {shown(name)} lie at {offset}, not at {at}, where those "
                    "before it end"
                )
            tensor = scanner.tensor(name, kind, sides, begin + offset)
            found.append(tensor)
            end = offset + tensor.n_bytes
            at = _up(end, alignment)
        if found and scanner.size not in (begin + end, begin + at):
            raise scanner.damaged(
                f"it has {scanner.size} bytes; its last tensor ends at {begin + end}"
            )
        return found


def open_gguf(raw: GgufSource) -> Source:
    """A GGUF file as ours.

    Raises:
        FormatError: a tensor has no place in RWKV-7, or the metadata contradict the tensors.
        UnsupportedError: another epsilon than RWKV-7's.
    """
    _check_stated(raw)
    return MappedSource(raw, f"{raw.kind} {ARCHITECTURE}", _entries(raw, _head_size(raw)))


def _entries(raw: GgufSource, head_size: int) -> Iterator[Entry]:
    for tensor in raw.tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if block and block[2] == _FUSED:
            yield from ggml.split(raw.path, tensor, f"blocks.{block[1]}.att.x_")
            continue
        name = _OUTER_NAMES.get(tensor.name)
        if block and block[2] in _BLOCK_NAMES:
            name = f"blocks.{block[1]}.{_BLOCK_NAMES[block[2]]}"
        if name is None:
            raise FormatError(
                f"{raw.path}: tensor {shown(tensor.name)} is not part of an RWKV-7 model in "
                "llama.cpp's names: the file holds a variant that wkvm does not run, or something "
                "else beside the model"
            )
        if name in ("blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"):
            continue  # llama.cpp's converter fills them with copies of a0, a1, a2
        if name.endswith(".r_k"):  # flat
            yield Entry(name, (math.prod(tensor.shape) // head_size, head_size), tensor.name)
        else:
            yield entry_of(name, tensor)


def _check_stated(raw: GgufSource) -> None:
    """Refuse metadata that contradict the tensors, or ask for other arithmetic than RWKV-7's."""
    blocks = [int(match[1]) for t in raw.tensors if (match := _BLOCK.fullmatch(t.name))]
    _compare(raw, "rwkv7.block_count", max(blocks, default=-1) + 1, "the list of tensors")
    _compare(raw, "rwkv7.token_shift_count", 2, "RWKV-7")
    for tensor in raw.tensors:
        for key, (ending, side) in _STATED.items():
            is_dummy = tensor.name == "blk.0.time_mix_v1.weight"
            if tensor.name.endswith(ending) and side < len(tensor.shape) and not is_dummy:
                _compare(raw, f"rwkv7.{key}", tensor.shape[side], f"tensor {shown(tensor.name)}")
    n_texts = raw.lengths.get("tokenizer.ggml.tokens")
    embedding = next((t for t in raw.tensors if t.name == "token_embd.weight"), None)
    if n_texts is not None and embedding is not None and n_texts != embedding.shape[0]:
        raise FormatError(
            f"{raw.path}: the vocabulary in it has {n_texts} tokens, token_embd.weight "
            f"{embedding.shape[0]} rows; get the file from another place"
        )
    eps = raw.numbers.get("rwkv7.attention.layer_norm_epsilon", LAYER_NORM_EPS)
    if not math.isclose(eps, LAYER_NORM_EPS, rel_tol=1e-6):
        raise UnsupportedError(
            f"{raw.path} says rwkv7.attention.layer_norm_epsilon {eps:g}; wkvm computes with "
            f"{LAYER_NORM_EPS:g}, as RWKV-7 was published"
        )


def _compare(raw: GgufSource, key: str, actual: int, where: str) -> None:
    stated = raw.numbers.get(key, actual)
    if stated != actual:
        raise FormatError(
            f"{raw.path} says {key} {stated}, but {where} has {actual}; get the file from another "
            "place"
        )


def _head_size(raw: GgufSource) -> int:
    """N of the heads, which only the metadata say: r_k is flat."""
    size = raw.numbers.get("rwkv7.wkv.head_size")
    if not isinstance(size, int) or size < 1:
        raise FormatError(
            f"{raw.path}: rwkv7.wkv.head_size is "
            f"{'missing' if size is None else size}; no tensor says how wide the heads are: get "
            "the file from another place"
        )
    for tensor in raw.tensors:
        if tensor.name.endswith(".time_mix_r_k.weight") and (
            tensor.shape[-1] not in (size, math.prod(tensor.shape)) or tensor.shape[-1] % size
        ):
            raise FormatError(
                f"{raw.path} says rwkv7.wkv.head_size {size}, but tensor {shown(tensor.name)} has "
                f"shape {list(tensor.shape)}; get the file from another place"
            )
    return size


def _check_version(scanner: Scanner, version: int) -> None:
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(
            f"{scanner.path} is a GGUF file of a big-endian machine; get the little-endian one"
        )
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"{scanner.path} is a GGUF file of version {version}; wkvm reads "
            f"{' and '.join(map(str, _VERSIONS))}: get a newer one"
        )


def _wrong_architecture(scanner: Scanner, name: str | None) -> Exception:
    if name is None:
        return FormatError(
            f"{scanner.path} is a GGUF file without a general.architecture; download it again"
        )
    return UnsupportedError(
        f"{scanner.path} is a GGUF file of the architecture {shown(name)}; wkvm runs {ARCHITECTURE}"
    )


def _letter(scanner: Scanner, kind: int, what: str) -> str:
    """Struct's letter for a type of number. llama.cpp has no arrays of arrays either."""
    if kind not in _NUMBERS:
        raise scanner.damaged(f"{what} has values of type {kind}")
    return _NUMBERS[kind]


def _stored_type(path: Path, name: str, number: int) -> StoredType:
    if number not in _TYPES:
        kind = _OTHER_TYPES.get(number, f"number {number}")
        raise UnsupportedError(
            f"{path}: tensor {shown(name)} has ggml's type {kind}, which wkvm does not read: "
            "K-quants and their like are rounded when they are unpacked, by each program in its "
            f"way; {ggml.GET_ANOTHER}"
        )
    return _TYPES[number]


def _up(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
