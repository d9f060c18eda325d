"""llama.cpp's GGUF files of RWKV-7: the same bits as the original, every block unpacked exactly."""

import hashlib
import json
import random
import re
import struct

import checkpoint_files
import engines
import ggml_blocks
import gguf_files
import limited_memory
import numpy as np
import opened
import pytest
import spellings
from conftest import DATA
from gguf_files import BOOL, F32, F64, I32, LIST, TEXT, U8, U16, U32, U64
from opened import read_all

import wkvm
from wkvm.errors import FileError, FormatError, UnsupportedError
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.export import export_checkpoint
from wkvm.formats.fingerprint import weights_digest
from wkvm.formats.floats import as_float32
from wkvm.formats.gguf import GgufSource
from wkvm.formats.load import load_model
from wkvm.formats.open import open_checkpoint

GOLDEN = DATA / "gguf"


@pytest.fixture(scope="module")
def tensors():
    return ggml_blocks.small_checkpoint()


@pytest.fixture(scope="module")
def spelt(tensors):
    return gguf_files.spelt(tensors, "F16")


def write_canonical(path, tensors):
    checkpoint_files.write_safetensors(path, tensors)
    return path


def bits(path, n_vocab=64):
    return opened.bits(path, engines.tokens(24, n_vocab=n_vocab))


def refusal(path, match, errors=FormatError):
    with pytest.raises(errors, match=match) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the same checkpoint


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_file_is_the_same_checkpoint_and_gives_the_same_bits(tmp_path, tensors, dtype):
    spelt = gguf_files.spelt(tensors, dtype)
    canonical = gguf_files.canonical(tensors, spelt)
    path = gguf_files.write(tmp_path / "model.gguf", spelt)
    original = write_canonical(tmp_path / "model.safetensors", canonical)
    assert read_all(path) == spellings.canonical(canonical)
    assert engines.differing(bits(path), bits(original)) == []
    with open_checkpoint(path) as ours, open_checkpoint(original) as theirs:
        assert ours.kind == "GGUF rwkv7"
        assert ours.metadata == {}
        assert weights_digest(ours) == weights_digest(theirs)


@pytest.mark.parametrize("kind", ggml_blocks.BLOCKS)
def test_quantised_matrices_are_unpacked_exactly(tmp_path, tensors, spelt, kind):
    blocks, values = gguf_files.quantised(spelt, kind)
    canonical = gguf_files.canonical(tensors, values)
    path = gguf_files.write(tmp_path / "model.gguf", blocks)
    assert read_all(path) == spellings.canonical(canonical)
    original = write_canonical(tmp_path / "model.safetensors", canonical)
    assert engines.differing(bits(path), bits(original)) == []


def test_every_scale_and_level_of_q8_0_is_unpacked_exactly(tmp_path, spelt):
    scales = np.arange(2**16, dtype="<u2").view("<f2")
    scales = scales[np.isfinite(scales)]
    blocks = np.random.default_rng(0).integers(0, 256, (len(scales), 34), np.uint8)
    blocks[:, :2] = scales.reshape(-1, 1).view(np.uint8)
    levels = blocks[:, 2:].view(np.int8).astype(np.float64)
    assert len(np.unique(levels)) == 256
    exact = scales.astype(np.float64)[:, None] * levels
    changed = {**spelt, "output.weight": ("Q8_0", (len(scales) // 2, 64), blocks.tobytes())}
    entries = gguf_files.metadata(spelt)
    with open_checkpoint(gguf_files.write(tmp_path / "m", changed, entries)) as source:
        index = [tensor.name for tensor in source.tensors].index("head.weight")
        found = source.read(index).view("<f4")
    assert (found == exact.reshape(-1)).all()


def test_a_real_model_gives_the_same_bits(tmp_path, fixtures):
    original = fixtures / "rwkv7_tiny" / "tiny-rwkv7-834K-fp32.safetensors"
    spelt = gguf_files.spelt(checkpoint_files.read(original))
    path = gguf_files.write(tmp_path / "model.gguf", spelt)
    assert engines.differing(bits(path, 256), bits(original, 256)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"version": 2},
        {"alignment": 1},
        {"alignment": 4096},
        {"is_padded": False},
    ],
    ids=str,
)
def test_every_layout_of_a_file_is_read(tmp_path, tensors, spelt, options):
    entries = gguf_files.metadata(spelt)
    if "alignment" in options:
        entries["general.alignment"] = (U32, options["alignment"])
    path = gguf_files.write(tmp_path / "m", spelt, entries, **options)
    assert read_all(path) == spellings.canonical(gguf_files.canonical(tensors, spelt))


@pytest.mark.parametrize("sides", [1, 2, 3])
def test_sides_of_one_may_be_left_out_or_written(tmp_path, tensors, spelt, sides):
    changed = {
        name: (dtype, (1,) * (sides - len(shape)) + shape, data)
        if "time_mix_" in name and len(shape) == 1 and "_ln." not in name and "r_k" not in name
        else (dtype, (6, 64), data)
        if "fused" in name and sides == 2
        else (dtype, shape, data)
        for name, (dtype, shape, data) in reversed(spelt.items())
    }
    path = gguf_files.write(tmp_path / "m", changed)
    assert read_all(path) == spellings.canonical(gguf_files.canonical(tensors, spelt))


def test_metadata_of_every_type_are_read_over(tmp_path, tensors, spelt):
    entries = {
        "a.text": (TEXT, "x" * 100_000),
        "a.text that is none": (TEXT, b"\xff\xfe"),
        "a.flag": (BOOL, True),
        "a.list of none": (LIST, (TEXT, [])),
        **{f"a.number {t}": (t, 1) for t in (U8, U16, U32, I32, F32, U64, F64)},
        **{f"a.list {t}": (LIST, (t, [1, 2, 3])) for t in (U8, U16, U32, I32, F32, U64, F64)},
        "rwkv7.vocab_size": (U32, 64),
        "rwkv7.token_shift_count": (U32, 2),
        "split.count": (U16, 0),
    }
    path = gguf_files.write(tmp_path / "m", spelt, entries | gguf_files.metadata(spelt))
    assert read_all(path) == spellings.canonical(gguf_files.canonical(tensors, spelt))


def test_a_file_that_says_little_is_read_by_its_shapes(tmp_path, tensors, spelt):
    needed = ("general.architecture", "rwkv7.wkv.head_size")
    entries = {key: gguf_files.metadata(spelt)[key] for key in needed}
    path = gguf_files.write(tmp_path / "m", spelt, entries)
    assert read_all(path) == spellings.canonical(gguf_files.canonical(tensors, spelt))


@pytest.mark.parametrize("size", [16, 32])
def test_other_head_sizes_give_the_same_bits(tmp_path, tensors, spelt, size):
    canonical = {
        name: (dtype, (64 // size, size) if name.endswith(".r_k") else shape, data)
        for name, (dtype, shape, data) in gguf_files.canonical(tensors, spelt).items()
    }
    path = gguf_files.write(tmp_path / "m.gguf", spelt, gguf_files.metadata(spelt, size))
    original = write_canonical(tmp_path / "m.safetensors", canonical)
    assert load_model(path).model.info()["head_size"] == size
    assert engines.differing(bits(path), bits(original)) == []


def test_the_origins_say_where_each_tensor_lies(tmp_path, spelt):
    blocks, _ = gguf_files.quantised(spelt, "Q8_0")
    with open_checkpoint(gguf_files.write(tmp_path / "m", blocks)) as source:
        origins = {t.name: o for t, o in zip(source.tensors, source.origins, strict=True)}
    assert origins["emb.weight"] == "token_embd.weight, Q8_0"
    assert origins["blocks.1.att.a1"] == "blk.1.time_mix_a1.weight, Q8_0, transposed"
    assert origins["blocks.1.att.x_v"] == "blk.1.time_mix_lerp_fused.weight, row 3"
    assert origins["blocks.0.att.w0"] == "blk.0.time_mix_w0.weight"


def test_a_folder_may_hold_a_single_file(tmp_path, tensors, spelt):
    gguf_files.write(tmp_path / "model.gguf", spelt)
    assert read_all(tmp_path) == spellings.canonical(gguf_files.canonical(tensors, spelt))


def test_it_converts_as_its_original_does(tmp_path, tensors, spelt):
    path = gguf_files.write(tmp_path / "m.gguf", spelt)
    original = write_canonical(tmp_path / "m", gguf_files.canonical(tensors, spelt))
    for source, name in ((path, "a"), (original, "b")):
        convert_checkpoint(source, tmp_path / f"{name}.packed")
        export_checkpoint(source, tmp_path / f"{name}.export", "blinkdl")
    for ending in ("packed", "export"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_a_file_that_changes_or_is_cut_while_it_is_open_is_noticed(tmp_path, spelt):
    path = gguf_files.write(tmp_path / "m", spelt)
    with open_checkpoint(path) as source:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(FormatError, match="ends within tensor"):
            source.read(len(source.tensors) - 1)
        with pytest.raises(FileError, match="changed"):
            source.check_unchanged()


# ---------------------------------------------------------------- llama.cpp's own word


def test_every_type_is_unpacked_as_llama_cpp_s_package_does_it():
    digests = json.loads((GOLDEN / "every_type.json").read_text())
    with GgufSource(GOLDEN / "every_type.gguf") as source:
        found = {
            tensor.name: hashlib.sha256(as_float32(source.read(i), tensor.dtype)).hexdigest()
            for i, tensor in enumerate(source.tensors)
        }
        assert {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} <= {
            origin.split(", ")[-1] for origin in source.origins
        }
    assert found == digests
    assert np.isfinite(engines.run(wkvm.load(GOLDEN / "every_type.gguf").session(), [1, 2])).all()


def test_logits_agree_with_llama_cpp_s(tmp_path, checkpoint):
    original = checkpoint("r7-s128")
    spelt = gguf_files.spelt(checkpoint_files.read(original))
    path = gguf_files.write(tmp_path / "m.gguf", spelt)
    golden = GOLDEN / "r7-s128-llamacpp.safetensors"
    with open_checkpoint(golden) as source:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == source.metadata["gguf_sha256"]
    found = checkpoint_files.read(golden)
    prompt = np.frombuffer(found["tokens"][2], "<i4").tolist()
    theirs = checkpoint_files.to_float64(*found["logits"])
    logits = wkvm.load(path, threads=1).session().forward(prompt, logits="all")
    # Sums of 128 to 512 products in another order, through 3 blocks; the logits' spread is 1.5.
    assert np.abs(logits - theirs).max() <= 2e-4


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["rwkv6", "arwkv7", "rwkv6qwen2", "llama", "clip", "rwkv7x"])
def test_another_architecture_is_refused_by_name(tmp_path, spelt, name):
    entries = gguf_files.metadata(spelt) | {"general.architecture": (TEXT, name)}
    path = gguf_files.write(tmp_path / "m", spelt, entries)
    refusal(path, f"architecture {name}; wkvm runs rwkv7", UnsupportedError)


@pytest.mark.parametrize(
    ("number", "name"), [(12, "Q4_K"), (14, "Q6_K"), (20, "IQ4_NL"), (28, "F64"), (4, "number 4")]
)
def test_a_type_that_is_not_read_is_refused_by_name(tmp_path, spelt, number, name):
    changed = dict(spelt)
    _, shape, data = changed["blk.1.time_mix_key.weight"]
    changed["blk.1.time_mix_key.weight"] = (number, shape, data)
    path = gguf_files.write(tmp_path / "m", changed)
    match = rf"blk\.1\.time_mix_key\.weight has ggml's type {name}.*Q8_0"
    refusal(path, match, UnsupportedError)


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1"])
def test_blocks_whose_values_are_no_float32_are_refused(tmp_path, spelt, kind):
    blocks, _ = gguf_files.quantised(spelt, kind)
    _, shape, data = blocks["output.weight"]
    # 2**-24 * level + 1: the tenth of a float32's last place
    broken = struct.pack("<2e", 2**-24, 1.0) + data[4:]
    path = gguf_files.write(tmp_path / "m", blocks | {"output.weight": (kind, shape, broken)})
    refusal(path, rf"output\.weight in {kind} has a value .* no float32", UnsupportedError)


@pytest.mark.parametrize("kind", ggml_blocks.BLOCKS)
@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_blocks_whose_scale_is_not_finite_are_refused(tmp_path, spelt, kind, scale):
    blocks, _ = gguf_files.quantised(spelt, kind)
    _, shape, data = blocks["output.weight"]
    n = ggml_blocks.BLOCKS[kind][0]
    broken = data[:n] + struct.pack("<e", scale) + data[n + 2 :]
    path = gguf_files.write(tmp_path / "m", blocks | {"output.weight": (kind, shape, broken)})
    refusal(path, rf"output\.weight has a block of {kind} whose scale is not finite")


STATED = {
    "rwkv7.embedding_length": r"token_embd\.weight has 64",
    "rwkv7.vocab_size": r"token_embd\.weight has 64",
    "rwkv7.block_count": "the list of tensors has 2",
    "rwkv7.feed_forward_length": r"channel_mix_key\.weight has 128",
    "rwkv7.attention.decay_lora_rank": r"time_mix_w1\.weight has 32",
    "rwkv7.attention.iclr_lora_rank": r"time_mix_a1\.weight has 64",
    "rwkv7.attention.value_residual_mix_lora_rank": r"blk\.1\.time_mix_v1\.weight has 32",
    "rwkv7.attention.gate_lora_rank": r"time_mix_g1\.weight has 96",
    "rwkv7.token_shift_count": "RWKV-7 has 2",
}


@pytest.mark.parametrize("key", STATED)
@pytest.mark.parametrize("value", [(U32, 0), (U32, 65), (F64, float("nan")), (U64, 2**64 - 1)])
def test_metadata_that_contradict_the_tensors_are_refused(tmp_path, spelt, key, value):
    entries = gguf_files.metadata(spelt) | {key: value}
    path = gguf_files.write(tmp_path / "m", spelt, entries)
    refusal(path, f"says {key} .*{STATED[key]}")


@pytest.mark.parametrize("size", [0, 3, 63, 128, 2**32 - 1])
def test_a_head_size_that_does_not_fit_is_refused(tmp_path, spelt, size):
    path = gguf_files.write(tmp_path / "m", spelt, gguf_files.metadata(spelt, size))
    refusal(path, rf"wkv\.head_size (is )?{size}")


def test_a_missing_head_size_is_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    del entries["rwkv7.wkv.head_size"]
    refusal(gguf_files.write(tmp_path / "m", spelt, entries), r"wkv\.head_size is missing")


@pytest.mark.parametrize("size", [16, 64])
def test_a_head_size_beside_another_one_is_refused(tmp_path, spelt, size):
    changed = dict(spelt)
    changed["blk.0.time_mix_r_k.weight"] = ("F32", (2, 32), spelt["blk.0.time_mix_r_k.weight"][2])
    path = gguf_files.write(tmp_path / "m", changed, gguf_files.metadata(spelt, size))
    refusal(path, rf"head_size {size}, .* shape \[2, 32\]")


@pytest.mark.parametrize("eps", [1e-6, 0.0, float("nan"), float("inf"), -1e-5])
def test_another_epsilon_is_refused(tmp_path, spelt, eps):
    entries = gguf_files.metadata(spelt)
    entries["rwkv7.attention.layer_norm_epsilon"] = (F32, eps)
    path = gguf_files.write(tmp_path / "m", spelt, entries)
    refusal(path, "layer_norm_epsilon .* computes with 1e-05", UnsupportedError)


def test_a_vocabulary_of_another_size_is_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    entries["tokenizer.ggml.tokens"] = (LIST, (TEXT, ["x"] * 65))
    path = gguf_files.write(tmp_path / "m", spelt, entries)
    refusal(path, r"vocabulary in it has 65 tokens, token_embd\.weight 64 rows")


@pytest.mark.parametrize(
    ("version", "match"),
    [(0, "version 0"), (1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")],
)
def test_another_version_is_refused(tmp_path, spelt, version, match):
    path = gguf_files.write(tmp_path / "m", spelt, version=version)
    refusal(path, match, UnsupportedError)


def test_one_of_several_files_is_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt) | {"split.count": (U16, 3)}
    path = gguf_files.write(tmp_path / "m", spelt, entries)
    refusal(path, "llama-gguf-split --merge", UnsupportedError)


# ---------------------------------------------------------------- strangers' files


def header_size(data: bytes, spelt) -> int:
    """Bytes before the tensors' data."""
    return data.index(spelt["token_embd.weight"][2])


def refused(folder, at_least):
    found = limited_memory.outcomes(folder)
    assert len(found) >= at_least
    assert {name: how for name, how in found.items() if not how.startswith("refused ")} == {}


def test_a_whole_file_loads_in_that_memory(tmp_path, spelt):
    gguf_files.write(tmp_path / "m", spelt)
    assert limited_memory.outcomes(tmp_path) == {"m": "loaded"}


def test_truncated_files_are_refused(tmp_path, spelt):
    whole = gguf_files.container(spelt, gguf_files.metadata(spelt), is_padded=False)
    dice = random.Random(1)
    lengths = [dice.randrange(len(whole)) for _ in range(30)]
    lengths += [dice.randrange(header_size(whole, spelt)) for _ in range(70)]
    lengths += [*range(4, 24, 4), len(whole) - 1]
    for i, length in enumerate(lengths):
        (tmp_path / f"{i:03}").write_bytes(whole[:length])
    refused(tmp_path, 106)


def refused_saying(folder, files):
    """Every file, name -> (bytes, what the message says), is refused with that message."""
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    found = limited_memory.outcomes(folder)
    wrong = {
        name: found[name]
        for name, (_, match) in files.items()
        if not re.match(f"refused .*{match}", found[name])
    }
    assert wrong == {}


W0 = "blk.0.time_mix_w0.weight"
NO_PART = "is not part of an RWKV-7 model"
NAMES = {
    **dict.fromkeys(
        [
            *("../../etc/passwd", "/etc/passwd", f"{W0}/../../x", "", "emb.weight", "x" * 1000),
            *("blk..time_mix_w0.weight", "blk.-1.time_mix_w0.weight", f"{W0}\0", f"{W0}\n"),
            *("blk.00.time_mix_w0.weight", "blk.1e3.time_mix_w0.weight", "blk.0.ffn_up.weight"),
            *("blk.0.time_mix_z0.weight", "blk.٣.time_mix_w0.weight", "blk.0.time_mix_x_r.weight"),
            "blk.9999999.time_mix_w0.weight",
        ],
        NO_PART,
    ),
    "blk.999999.time_mix_w0.weight": "block_count 2, but the list of tensors has 1000000",
    "x" * 65_536: "a tensor's name has 65536 bytes",
    "x" * 10**6: "a tensor's name has 1000000 bytes",
}


def test_tricks_with_names_are_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    files = {}
    for i, (name, match) in enumerate(NAMES.items()):
        changed = {name if key == W0 else key: raw for key, raw in spelt.items()}
        files[f"{i:02}"] = gguf_files.container(changed, entries), match
    whole = gguf_files.container(spelt, entries)
    for other in ("blk.0.time_mix_a0.weight", "blk.1.time_mix_w0.weight"):
        data = whole.replace(W0.encode(), other.encode())
        files[other] = data, f"it has two tensors {re.escape(other)}"
    files["text"] = whole.replace(b"blk.0.time_mix_w0", b"blk.0.time_mix_\xff0"), "is not UTF-8"
    refused_saying(tmp_path, files)


def lists(*parts):
    return struct.pack("<I", 9) + b"".join(struct.pack("<IQ", *part) for part in parts)


VALUES = {
    "of type 9": [
        lists((9, 1), (4, 0)),
        lists(*[(9, 1)] * 100, (4, 0)),
        lists(*[(9, 1)] * 200_000, (4, 0)),
        lists((9, 2**64 - 1)),
    ],
    "of type 13": [lists((13, 1)), struct.pack("<I", 13)],
    "of type 4294967295": [lists((2**32 - 1, 1)), struct.pack("<I", 2**32 - 1)],
    "would reach beyond byte": [
        lists((8, 2**64 - 1)),
        lists((8, 2**32)),
        lists((8, 40_000)),
        lists((8, 3)) + struct.pack("<Q", 2**63) * 3,
        lists((0, 2**63)),
        lists((12, 2**61)),
        struct.pack("<IQ", 8, 2**64 - 1),
        struct.pack("<IQ", 8, 2**31),
    ],
}


def test_tricks_with_metadata_are_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    files = {}

    def add(more, match, **options):
        data = gguf_files.container(spelt, entries | more, **options)
        files[f"{len(files):02}"] = data, match

    for match, values in VALUES.items():
        for value in values:
            add({"x": (gguf_files.RAW, value)}, match)
    add({gguf_files.text("rwkv7.block_count"): (U32, 2)}, r"have rwkv7\.block_count twice")
    add({gguf_files.text("x"): (U32, 2), "x": (U32, 2)}, "have x twice")
    add({gguf_files.text(b"\xff"): (U32, 2)}, "a key is not UTF-8")
    add({"x" * 65_536: (U32, 2)}, "a key has 65536 bytes")
    add({struct.pack("<Q", 2**64 - 1): (U32, 2)}, "a key has 18446744073709551615 bytes")
    for kind, step in ((U32, 0), (U32, 3), (U32, 48), (F32, 32.0), (I32, -32)):
        alignment = {"general.alignment": (kind, step)}
        add(alignment, "not a power of two", alignment=int(step) if step > 0 else 32)
    add({"general.alignment": (U64, 2**63)}, "beyond the end of the file")
    add({"general.alignment": (U32, 2**31)}, "beyond the end of the file")
    add({"general.alignment": (U32, 64)}, "beyond the end of the file")
    for value in ((U32, 7), (LIST, (U8, []))):
        add({"general.architecture": value}, "without a general.architecture")
    add({"general.architecture": (TEXT, b"\xff")}, "general.architecture is not UTF-8")
    add({"general.architecture": (TEXT, "x" * 70_000)}, "general.architecture has 70000 bytes")
    whole = gguf_files.container(spelt, entries)
    for i, n in enumerate((65_537, 2**40, 2**64 - 1)):
        count = struct.pack("<Q", n)
        files[f"tensors-{i}"] = whole[:8] + count + whole[16:], f"claims {n} tensors"
        files[f"entries-{i}"] = whole[:16] + count + whole[24:], f"claims {n} metadata entries"
    refused_saying(tmp_path, files)


def test_a_header_beyond_all_measure_is_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt) | {"x": (TEXT, b"")}
    whole = gguf_files.container(spelt, entries)
    at = whole.index(gguf_files.text("x") + struct.pack("<IQ", TEXT, 0)) + 13
    with (tmp_path / "m").open("wb") as file:  # sparse
        file.write(whole[:at] + struct.pack("<Q", 100_000_000))
        file.seek(at + 8 + 100_000_000)
        file.write(whole[at + 8 :])
    refusal(tmp_path / "m", "entry x would reach beyond byte 100000000, where it has to end")


def test_tensors_that_do_not_fit_the_file_are_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    key, (_, shape, data) = "output.weight", spelt["output.weight"]
    whole = gguf_files.container(spelt, entries)
    files = {
        "end": (whole[:-40], "would end beyond the end of the file"),
        "surplus": (whole + bytes(32), "its last tensor ends at"),
        "none": (gguf_files.container({}, entries), "the list of tensors has 0"),
    }
    for i, (kind, sides, match) in enumerate(
        [
            ("F16", (2**40,) * 4, "beyond the end of the file"),
            ("F16", (2**64 - 1,), "beyond the end of the file"),
            ("F16", (), r"has the shape \[\]"),
            ("F16", (64, 0), r"has the shape \[0, 64\]"),
            ("F16", (1, 1, 1, 64, 64), "has the shape"),
            ("F16", (1,) * 65_537, "claims 65537 sides of tensor output.weight"),
            ("Q8_0", (128, 16), "has rows of 16, which are no whole blocks of Q8_0"),
            ("Q8_0", (2048, 1), "has rows of 1, which are no whole blocks of Q8_0"),
            ("F32", shape, "lie at .*, not at"),
        ]
    ):
        changed = gguf_files.container({**spelt, key: (kind, sides, data)}, entries)
        files[f"{i}"] = changed, match
    at = whole.index(gguf_files.text(key)) + 8 + len(key) + 4 + 2 * 8 + 4
    for i, offset in enumerate((0, 1, 16, 32, 2**20, 2**40, 2**63, 2**64 - 32)):
        changed = whole[:at] + struct.pack("<Q", offset) + whole[at + 8 :]
        files[f"offset-{i}"] = changed, f"output.weight lie at {offset}, not at"
    refused_saying(tmp_path, files)


def test_wrong_counts_sides_and_offsets_are_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    whole = gguf_files.container(spelt, entries)
    for i, count in enumerate((0, 1, len(spelt) - 1, len(spelt) + 1, 2**16)):
        for at in (8, 16):
            changed = whole[:at] + struct.pack("<Q", count) + whole[at + 8 :]
            (tmp_path / f"count-{at}-{i}").write_bytes(changed)
    dice = random.Random(2)
    for i in range(90):
        name = dice.choice(sorted(spelt))
        key = gguf_files.text(name)
        at = whole.index(key) + len(key)
        kind = at + 4 + 8 * len(spelt[name][1])
        where, what = [
            (at, struct.pack("<I", dice.choice([0, 5, 2**16, 2**32 - 1]))),
            (at + 4, struct.pack("<Q", dice.choice([0, 1, 63, 65, 2**32, 2**62, 2**64 - 1]))),
            (kind, struct.pack("<I", dice.choice([4, 5, 12, 24, 31, 2**31, 2**32 - 1]))),
            (kind, struct.pack("<I", {0: 1, 1: 0}[gguf_files.TYPES[spelt[name][0]]])),
            (kind + 4, struct.pack("<Q", dice.randrange(0, 100_000, 32) + 16)),
        ][i % 5]
        changed = whole[:where] + what + whole[where + len(what) :]
        assert changed != whole
        (tmp_path / f"tensor-{i:02}").write_bytes(changed)
    refused(tmp_path, 100)


def test_a_missing_or_surplus_tensor_is_refused(tmp_path, spelt):
    entries = gguf_files.metadata(spelt)
    dice = random.Random(3)
    needed = sorted(name for name in spelt if "0.time_mix_v" not in name or "value" in name)
    for i, name in enumerate(dice.sample(needed, 20)):
        less = {key: raw for key, raw in spelt.items() if key != name}
        gguf_files.write(tmp_path / f"missing-{i:02}", less, entries)
        more = spelt | {name.replace(".0.", ".2.") + "x": spelt[name]}
        gguf_files.write(tmp_path / f"surplus-{i:02}", more, entries)
    refused(tmp_path, 40)


def test_any_damage_of_a_header_is_a_typed_error_or_harmless(tmp_path, spelt):
    whole = gguf_files.container(spelt, gguf_files.metadata(spelt))
    begin = header_size(whole, spelt)
    dice = random.Random(4)
    for i in range(150):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 2, 8])):
            damaged[dice.randrange(begin)] = dice.choice(b"\x00\x01\x08\x09\x20\x7f\x80\xff.0")
        (tmp_path / f"{i:03}").write_bytes(damaged)
    found = limited_memory.outcomes(tmp_path)
    assert {name: how for name, how in found.items() if how.startswith("FAILED")} == {}
    assert sum(how.startswith("refused") for how in found.values()) >= 100
