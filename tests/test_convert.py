"""Loading, converting and describing checkpoints: every way to one model ends in the same bits."""

import json
import math
import os
import struct
import subprocess
import sys
import textwrap

import checkpoint_files
import pth_files
import pytest
import typer
from typer.testing import CliRunner

from wkvm.cli.convert import convert as convert_command
from wkvm.cli.info import describe
from wkvm.cli.info import info as info_command
from wkvm.errors import FileError, FormatError, InvalidArgumentError, UnsupportedError
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.fingerprint import weights_digest
from wkvm.formats.load import load_model
from wkvm.formats.open import open_checkpoint
from wkvm.hypervisor.policy import resolve

DTYPES = ("fp32", "fp16", "bf16", "int8")
MODELS = ("r7-s128", "x128-6p2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def raw(checkpoint):
    """Model name -> its tensors as stored, read apart from the code under test."""
    return {name: checkpoint_files.read(checkpoint(name)) for name in MODELS}


@pytest.fixture(scope="module")
def spelt(raw, tmp_path_factory):
    """Model name -> its checkpoint in every spelling, most of them made here."""
    spelt = {}
    for name, tensors in raw.items():
        folder = tmp_path_factory.mktemp(name)
        checkpoint_files.write_safetensors(folder / "m.safetensors", tensors, {"format": "pt"})
        aliased = {
            tensor.replace("moba.", "moba.blocks.", 1) if tensor.startswith("moba.") else tensor: t
            for tensor, t in reversed(tensors.items())
        }
        checkpoint_files.write_safetensors(folder / "aliased.safetensors", aliased)
        spelt[name] = {
            "safetensors": folder / "m.safetensors",
            "aliased, reversed": folder / "aliased.safetensors",
            "pth": pth_files.write_checkpoint(folder / "m.pth", tensors),
            "sharded": checkpoint_files.write_sharded(folder / "sharded", tensors, 3),
            "folder": folder / "sharded",
        }
    return spelt


def packed(model):
    """The model's packed tensors, by name."""
    return {name: (dtype, shape, data.tobytes()) for name, dtype, shape, data in model.tensors()}


def differing(a, b):
    """The names whose tensors differ: a short message where `a == b` would print megabytes."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


# ---------------------------------------------------------------- one model, many spellings


@pytest.mark.parametrize("dtype", ["auto", *DTYPES])
@pytest.mark.parametrize("name", MODELS)
def test_every_spelling_and_its_conversion_load_the_same_bits(spelt, tmp_path, name, dtype):
    expected = packed(load_model(spelt[name]["safetensors"], dtype).model)
    assert expected
    digests = set()
    for kind, path in spelt[name].items():
        loaded = load_model(path, dtype)
        assert differing(packed(loaded.model), expected) == [], kind
        target = tmp_path / f"{kind}.safetensors"
        convert_checkpoint(path, target, dtype=dtype)
        converted = load_model(target)
        assert converted.kind == "wkvm packed"
        assert differing(packed(converted.model), expected) == [], kind
        assert {**converted.model.info(), "is_packed": False} == loaded.model.info()
        digests |= {loaded.weights_digest(), converted.weights_digest()}
    assert len(digests) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_converting_is_deterministic_whatever_the_container(spelt, tmp_path, dtype):
    contents = set()
    for i, path in enumerate(spelt["x128-6p2"].values()):
        convert_checkpoint(path, tmp_path / str(i), dtype=dtype)
        contents.add((tmp_path / str(i)).read_bytes())
    assert len(contents) == 1


def test_unused_tensors_are_part_of_the_digest_but_not_of_the_model(raw, tmp_path):
    tensors = raw["r7-s128"]
    assert "blocks.0.att.v1" in tensors
    changed = {
        name: (dtype, shape, bytes(len(data)) if name == "blocks.0.att.v1" else data)
        for name, (dtype, shape, data) in tensors.items()
    }
    checkpoint_files.write_safetensors(tmp_path / "a", tensors)
    checkpoint_files.write_safetensors(tmp_path / "b", changed)
    a, b = load_model(tmp_path / "a"), load_model(tmp_path / "b")
    assert differing(packed(a.model), packed(b.model)) == []
    assert a.weights_digest() != b.weights_digest()


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_model_outlives_its_file_and_its_digest_does_not_lie(spelt, tmp_path, kind):
    path = tmp_path / "m"
    path.write_bytes(spelt["r7-s128"][kind].read_bytes())
    loaded = load_model(path)
    before = packed(loaded.model)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileError, match="changed since it was loaded"):
        loaded.weights_digest()
    path.unlink()
    assert differing(packed(loaded.model), before) == []
    with pytest.raises(FileError):
        loaded.weights_digest()


@pytest.mark.parametrize("kind", ["pth", "sharded"])
def test_a_digest_is_of_the_file_that_was_loaded_whatever_the_current_folder(
    spelt, tmp_path, monkeypatch, kind
):
    path = spelt["r7-s128"][kind]
    monkeypatch.chdir(path.parent)
    loaded = load_model(path.name)
    expected = load_model(path).weights_digest(use_cache=False)
    monkeypatch.chdir(tmp_path)
    assert loaded.path == path
    assert loaded.weights_digest(use_cache=False) == expected


def test_a_converted_model_knows_its_digest_without_its_file(spelt, tmp_path):
    expected = load_model(spelt["r7-s128"]["pth"]).weights_digest()
    convert_checkpoint(spelt["r7-s128"]["pth"], tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    (tmp_path / "m").unlink()
    assert loaded.weights_digest() == expected
    assert loaded.weights_digest(use_cache=False) == expected


def test_a_converted_model_of_unknown_origin_has_no_digest(spelt, tmp_path):
    convert_checkpoint(spelt["r7-s128"]["pth"], tmp_path / "m")

    def edit(header):
        header["__metadata__"]["wkvm.weights_sha256"] = "0" * 63

    (tmp_path / "altered").write_bytes(edit_header((tmp_path / "m").read_bytes(), edit))
    with pytest.raises(FormatError, match="convert the original again"):
        load_model(tmp_path / "altered").weights_digest()


def test_a_converted_model_outlives_its_file(spelt, tmp_path):
    path = tmp_path / "m"
    convert_checkpoint(spelt["r7-s128"]["pth"], path)
    model = load_model(path).model
    before = packed(model)
    convert_checkpoint(spelt["x128-6p2"]["pth"], path, overwrite=True)
    assert differing(packed(model), before) == []


@pytest.mark.parametrize("kind", ["pth", "safetensors", "sharded"])
def test_progress_counts_every_byte_that_is_packed(spelt, kind):
    seen = []
    path = spelt["x128-6p2"][kind]
    load_model(path, progress=lambda done, total: seen.append((done, total)))
    assert len({total for _, total in seen}) == 1
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1]
    with open_checkpoint(path) as source:
        stored = sum(tensor.n_bytes for tensor in source.tensors)
    assert 0.9 * stored < seen[-1][1] < stored  # all but block 0's v0, v1, v2


# ---------------------------------------------------------------- what is refused


def test_a_converted_file_keeps_its_type(spelt, tmp_path):
    convert_checkpoint(spelt["r7-s128"]["pth"], tmp_path / "m", dtype="int8")
    assert load_model(tmp_path / "m", "int8").model.info()["dtype"] == "int8"
    for dtype in ("fp32", "fp16", "bf16"):
        with pytest.raises(InvalidArgumentError, match="convert the original"):
            load_model(tmp_path / "m", dtype)


@pytest.mark.parametrize("dtype", ["", "int4", "INT8", "f32", "q8_0"])
def test_an_unknown_dtype_is_refused(spelt, tmp_path, dtype):
    path = spelt["r7-s128"]["pth"]
    with pytest.raises(InvalidArgumentError, match="dtype"):
        load_model(path, dtype)
    with pytest.raises(InvalidArgumentError, match="dtype"):
        convert_checkpoint(path, tmp_path / "m", dtype=dtype)
    assert not (tmp_path / "m").exists()


def without(tensors, name):
    return {other: tensor for other, tensor in tensors.items() if other != name}


def with_data(tensors, name, place, value):
    """bf16 element `place` of a tensor replaced by the bits `value`."""
    dtype, shape, data = tensors[name]
    data = data[: 2 * place] + struct.pack("<H", value) + data[2 * place + 2 :]
    return tensors | {name: (dtype, shape, data)}


KEY = "rwkv.blocks.1.att.key.weight"
WRONG_MODELS = {
    "missing matrix": (lambda t: without(t, KEY), KEY),
    "missing vector": (lambda t: without(t, "rwkv.blocks.2.att.k_k"), "att.k_k"),
    "missing norm": (lambda t: without(t, "rwkv.blocks.0.ln0.weight"), "ln0.weight"),
    "missing embedding": (lambda t: without(t, "rwkv.emb.weight"), "emb.weight"),
    "missing head": (lambda t: without(t, "rwkv.head.weight"), "head.weight"),
    "missing attention": (lambda t: without(t, "moba.1.att.key.weight"), "moba.1.att.key"),
    "surplus tensor": (lambda t: t | {"rwkv.blocks.1.att.time_decay": t[KEY]}, "time_decay"),
    "surplus top level": (lambda t: t | {"optimizer": t[KEY]}, "optimizer"),
    "surplus padding": (lambda t: t | {"__pad.0": t[KEY]}, "__pad"),
    "transposed shape": (
        lambda t: t | {KEY: (t[KEY][0], (64, 256), t[KEY][2])},
        KEY,
    ),
    "one dimension": (lambda t: t | {KEY: (t[KEY][0], (128 * 128,), t[KEY][2])}, KEY),
    "integer weights": (lambda t: t | {KEY: ("U8", (256, 128), t[KEY][2])}, KEY),
    "infinity": (lambda t: with_data(t, KEY, 100, 0x7F80), KEY),
    "not a number": (lambda t: with_data(t, KEY, 16383, 0x7FC0), KEY),
    "not a number in a vector": (
        lambda t: with_data(t, "rwkv.blocks.1.ln1.bias", 0, 0xFFC1),
        "ln1.bias",
    ),
    "nothing": (lambda t: {}, None),
    "one tensor": (lambda t: {KEY: t[KEY]}, None),
}


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_wrong_model_is_refused_by_file_and_tensor(raw, tmp_path, name, kind):
    edit, match = WRONG_MODELS[name]
    tensors = edit(raw["x128-6p2"])
    assert tensors != raw["x128-6p2"]
    path = tmp_path / f"wrong.{kind}"
    if kind == "pth":
        pth_files.write_checkpoint(path, tensors)
    else:
        checkpoint_files.write_safetensors(path, tensors)
    for refuse in (
        lambda: load_model(path),
        lambda: convert_checkpoint(path, tmp_path / "out"),
    ):
        with pytest.raises((FormatError, UnsupportedError), match=match) as info:
            refuse()
        assert str(path) in str(info.value)
        assert "\n" not in str(info.value)
    assert sorted(os.listdir(tmp_path)) == [path.name]


def test_a_target_that_exists_is_only_replaced_by_force(spelt, tmp_path):
    target = tmp_path / "out"
    target.write_text("mine")
    with pytest.raises(FileError, match=r"exists: .*\(overwrite=True, --force\)"):
        convert_checkpoint(spelt["r7-s128"]["pth"], target)
    assert target.read_text() == "mine"
    convert_checkpoint(spelt["r7-s128"]["pth"], target, overwrite=True)
    assert load_model(target).kind == "wkvm packed"


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_checkpoint_is_never_written_over_itself(spelt, tmp_path, link):
    path = tmp_path / "m"
    path.write_bytes(spelt["r7-s128"]["pth"].read_bytes())
    target = path
    if link is not None:
        target = tmp_path / "link"
        link(path, target)
    before = path.read_bytes()
    with pytest.raises(FileError, match="is the checkpoint itself"):
        convert_checkpoint(path, target, overwrite=True)
    assert path.read_bytes() == before
    with pytest.raises(FileError):
        convert_checkpoint(path, target)


def test_a_shard_is_never_written_over(spelt):
    index = spelt["r7-s128"]["sharded"]
    for target in sorted(index.parent.iterdir()):
        before = target.read_bytes()
        with pytest.raises(FileError, match="is the checkpoint itself"):
            convert_checkpoint(index, target, overwrite=True)
        assert target.read_bytes() == before


def test_a_converted_file_is_not_converted_again(spelt, tmp_path):
    convert_checkpoint(spelt["r7-s128"]["pth"], tmp_path / "a")
    with pytest.raises(InvalidArgumentError, match="convert the original"):
        convert_checkpoint(tmp_path / "a", tmp_path / "b", dtype="int8")


@pytest.fixture(scope="module")
def int8_file(spelt, tmp_path_factory):
    path = tmp_path_factory.mktemp("int8") / "m.safetensors"
    convert_checkpoint(spelt["x128-6p2"]["safetensors"], path, dtype="int8")
    return path


def edit_header(content, edit):
    """A converted file with an edited header."""
    n = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + n])
    edit(header)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + content[8 + n :]


def renamed(old, new):
    def edit(header):
        header[new] = header.pop(old)

    return edit


def reshaped(name, shape):
    return lambda header: header[name].update(shape=shape)


def with_packed(old, new):
    def edit(header):
        metadata = header["__metadata__"]
        assert old in metadata["wkvm.packed"]
        metadata["wkvm.packed"] = metadata["wkvm.packed"].replace(old, new, 1)

    return edit


WRONG_HEADERS = {
    "tensor renamed": renamed(KEY, "rwkv.blocks.1.att.kez.weight"),
    "tensor beside": renamed(KEY + ".scale", KEY + ".scales"),
    "flat": reshaped(KEY, [128 * 128]),
    "transposed": reshaped("rwkv.blocks.1.ffn.key.weight", [128, 512]),
    "other type": lambda header: header[KEY].update(dtype="U8"),
    "no header": lambda header: header["__metadata__"].update({"wkvm.packed": ""}),
    "other version": with_packed("1 ", "2 "),
    "huge version": with_packed("1 ", "99999999999999999999 "),
    "text behind": lambda header: header["__metadata__"].update(
        {"wkvm.packed": header["__metadata__"]["wkvm.packed"] + " x=1"}
    ),
    "smaller vocabulary": with_packed("n_vocab=512", "n_vocab=256"),
    "larger vocabulary": with_packed("n_vocab=512", "n_vocab=513"),
    "huge vocabulary": with_packed("n_vocab=512", "n_vocab=18446744073709551615"),
    "no width": with_packed("n_embd=128", "n_embd=0"),
    "other width": with_packed("n_embd=128", "n_embd=192"),
    "head of 0": with_packed("head_size=64", "head_size=0"),
    "more blocks": with_packed("n_rwkv=6", "n_rwkv=7"),
    "fewer blocks": with_packed("n_rwkv=6", "n_rwkv=4"),
    "no blocks": with_packed("n_rwkv=6", "n_rwkv=0"),
    "many blocks": with_packed("n_rwkv=6", "n_rwkv=1000000000"),
    "negative blocks": with_packed("n_rwkv=6", "n_rwkv=-6"),
    "no attention": with_packed("n_attn=2", "n_attn=0"),
    "other family": with_packed("family=1", "family=0"),
    "unknown family": with_packed("family=1", "family=7"),
    "other dtype": with_packed("dtype=3", "dtype=2"),
    "unknown dtype": with_packed("dtype=3", "dtype=9"),
}


@pytest.mark.parametrize("name", WRONG_HEADERS)
def test_a_converted_file_with_an_altered_header_is_refused(int8_file, tmp_path, name):
    path = tmp_path / "altered"
    path.write_bytes(edit_header(int8_file.read_bytes(), WRONG_HEADERS[name]))
    with pytest.raises((FormatError, UnsupportedError)) as info:
        load_model(path)
    assert str(path) in str(info.value)


def test_an_unaltered_copy_of_that_header_is_accepted(int8_file, tmp_path):
    path = tmp_path / "copy"
    path.write_bytes(edit_header(int8_file.read_bytes(), lambda header: None))
    assert load_model(path).kind == "wkvm packed"


def test_a_converted_file_that_is_not_aligned_is_refused(int8_file, tmp_path):
    content = int8_file.read_bytes()
    n = int.from_bytes(content[:8], "little")
    path = tmp_path / "shifted"
    path.write_bytes(struct.pack("<Q", n + 1) + content[8 : 8 + n] + b" " + content[8 + n :])
    with pytest.raises(FormatError):
        load_model(path)


def test_a_converted_file_that_holds_minus_128_is_refused(int8_file, tmp_path):
    content = bytearray(int8_file.read_bytes())
    n = int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8 : 8 + n])[KEY]["data_offsets"]
    for place in (begin, (begin + end) // 2, end - 1):
        before, content[8 + n + place] = content[8 + n + place], 0x80
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(FormatError, match="-128"):
            load_model(tmp_path / "m")
        content[8 + n + place] = before


def test_a_truncated_converted_file_is_refused(int8_file, tmp_path):
    content = int8_file.read_bytes()
    for n in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:n])
        with pytest.raises((FormatError, UnsupportedError)):
            load_model(tmp_path / "cut")


# ---------------------------------------------------------------- metadata


def metadata(path):
    with open_checkpoint(path) as source:
        return source.metadata


def test_a_converted_file_says_what_it_is_and_what_it_came_from(spelt, tmp_path):
    path = spelt["x128-6p2"]["pth"]
    convert_checkpoint(path, tmp_path / "m", dtype="int8")
    with open_checkpoint(path) as source:
        digest = weights_digest(source, use_cache=False)
    packed_header = load_model(tmp_path / "m").model.packed_header()
    assert metadata(tmp_path / "m") == {
        "format": "wkvm",
        "wkvm.packed": packed_header,
        "wkvm.weights_sha256": digest,
    }


def test_policy_options_travel_with_the_file(raw, spelt, tmp_path):
    convert_checkpoint(
        spelt["x128-6p2"]["pth"], tmp_path / "a", policy={"moba_chunk_size": 16, "moba_topk": 4}
    )
    assert load_model(tmp_path / "a").policy_defaults == {"moba_chunk_size": 16, "moba_topk": 4}
    checkpoint_files.write_safetensors(
        tmp_path / "b", raw["x128-6p2"], {"wkvm.moba_chunk_size": "32", "other": "dropped"}
    )
    assert load_model(tmp_path / "b").policy_defaults == {"moba_chunk_size": 32}
    convert_checkpoint(tmp_path / "b", tmp_path / "c", policy={"moba_topk": 2})
    assert load_model(tmp_path / "c").policy_defaults == {"moba_chunk_size": 32, "moba_topk": 2}
    assert "other" not in metadata(tmp_path / "c")
    convert_checkpoint(tmp_path / "b", tmp_path / "d", policy={"moba_chunk_size": 64})
    assert load_model(tmp_path / "d").policy_defaults == {"moba_chunk_size": 64}
    assert load_model(spelt["x128-6p2"]["pth"]).policy_defaults == {}


@pytest.mark.parametrize("value", ["", "0", "-1", "1.0", " 1", "1 ", "0x10", "²", "９", str(2**31)])
def test_a_policy_option_that_is_no_number_is_refused(raw, tmp_path, value):
    checkpoint_files.write_safetensors(tmp_path / "m", raw["r7-s128"], {"wkvm.moba_topk": value})
    with pytest.raises(FormatError, match=r"wkvm\.moba_topk"):
        load_model(tmp_path / "m")
    with pytest.raises(FormatError, match=r"wkvm\.moba_topk"):
        convert_checkpoint(tmp_path / "m", tmp_path / "out")


EVERY_OPTION = {
    "moba_chunk_size": 16,
    "moba_topk": 4,
    "window_sinks": 0,
    "window_size": 24,
    "memory_keep_tokens": 64,
}


@pytest.mark.parametrize("memory", [{}, {"memory_keep_ratio": 1e-05}, {"memory_keep_ratio": 1.0}])
def test_the_options_of_every_policy_travel_with_the_file(raw, tmp_path, memory):
    options = EVERY_OPTION | memory
    if memory:
        del options["memory_keep_tokens"]
    texts = {f"wkvm.{name}": str(value) for name, value in options.items()}
    checkpoint_files.write_safetensors(tmp_path / "a", raw["x128-6p2"], texts)
    assert load_model(tmp_path / "a").policy_defaults == options
    convert_checkpoint(tmp_path / "a", tmp_path / "b")
    assert load_model(tmp_path / "b").policy_defaults == options
    assert {k: v for k, v in metadata(tmp_path / "b").items() if k in texts} == texts
    convert_checkpoint(tmp_path / "a", tmp_path / "c", policy={"window_size": 8})
    assert load_model(tmp_path / "c").policy_defaults == options | {"window_size": 8}


def test_one_way_to_say_what_memory_keeps_replaces_the_other(raw, tmp_path):
    checkpoint_files.write_safetensors(
        tmp_path / "tokens", raw["x128-6p2"], {"wkvm.memory_keep_tokens": "64"}
    )
    convert_checkpoint(tmp_path / "tokens", tmp_path / "ratio", policy={"memory_keep_ratio": 0.3})
    recorded = load_model(tmp_path / "ratio").policy_defaults
    assert recorded == {"memory_keep_ratio": 0.3}
    default = {"memory_keep_tokens": 128, "memory_keep_ratio": 0.3}
    assert resolve("memory", {}, recorded) == default
    given = {"memory_keep_tokens": 64}
    assert resolve("memory", given, recorded) == {"memory_keep_tokens": 64, "memory_keep_ratio": 0}
    both = {"memory_keep_tokens": 64, "memory_keep_ratio": 0.3}
    with pytest.raises(InvalidArgumentError, match="not both"):
        convert_checkpoint(tmp_path / "tokens", tmp_path / "m", policy=both)
    texts = {f"wkvm.{name}": str(value) for name, value in both.items()}
    checkpoint_files.write_safetensors(tmp_path / "both", raw["x128-6p2"], texts)
    with pytest.raises(FormatError, match="has both"):
        load_model(tmp_path / "both")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_sinks", "-1"),
        ("window_sinks", str(2**29)),
        ("window_size", "0"),
        ("window_size", str(2**29)),
        ("memory_keep_tokens", "0"),
        ("memory_keep_tokens", "1.5"),
        *[
            ("memory_keep_ratio", text)
            for text in ("0", "0.0", "-0.5", "1.01", "nan", "inf", "1e999", ".5", "0,5", "0x1", "")
        ],
        ("memory_keep_ratio", "0." + "0" * 1000 + "1"),
    ],
)
def test_an_option_out_of_its_range_is_refused(raw, tmp_path, name, value):
    checkpoint_files.write_safetensors(tmp_path / "m", raw["r7-s128"], {f"wkvm.{name}": value})
    with pytest.raises(FormatError, match=rf"m: .*wkvm\.{name} is '.*convert the original again"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    "policy",
    [
        {"moba_topk": 0},
        {"moba_topk": 2**31},
        {"moba_topk": True},
        {"moba_topk": 3.0},
        {"window_size": 2**29},
        {"memory_keep_ratio": 0.0},
        {"memory_keep_ratio": math.nan},
        {"window_height": 5},
    ],
)
def test_a_policy_option_that_cannot_be_recorded_is_refused(spelt, tmp_path, policy):
    with pytest.raises(InvalidArgumentError, match="policy option"):
        convert_checkpoint(spelt["r7-s128"]["pth"], tmp_path / "m", policy=policy)


# ---------------------------------------------------------------- info


def test_info_counts_what_the_tensors_hold(raw, spelt):
    tensors = {
        name: math.prod(shape)
        for name, (_, shape, _) in raw["x128-6p2"].items()
        if not name.startswith("rwkv.blocks.0.att.v")  # v0, v1, v2, and value.weight
    }
    n_params = sum(tensors.values()) + 128 * 128
    facts = describe(spelt["x128-6p2"]["sharded"])
    assert facts["n_params"] == n_params
    assert (facts["family"], facts["dtype"], facts["kind"]) == (
        "rwkvx",
        "bf16",
        "sharded safetensors",
    )
    assert (facts["n_vocab"], facts["n_embd"], facts["head_size"], facts["n_ffn"]) == (
        512,
        128,
        64,
        512,
    )
    assert (facts["n_rwkv"], facts["n_attn"], facts["n_unused"]) == (6, 2, 0)
    assert facts["block_order"] == "R0 R1 R2 A0 R3 R4 R5 A1"
    # Per RWKV block two shifts and a matrix per head, per attention block a shift, and x_last.
    assert facts["recurrent_state_bytes"] == 4 * (6 * (2 * 128 + 128 * 64) + 2 * 128 + 128)
    assert facts["kv_bytes_per_token"] == {"fp16": 2 * 2 * 2 * 128, "fp32": 4 * 2 * 2 * 128}
    n_read = n_params - 512 * 128 + 128  # one row of the embedding
    assert 4 * n_read <= facts["bytes_per_token"]["fp32"] < 4.2 * n_read
    assert 2 * n_read <= facts["bytes_per_token"]["bf16"] < 2.2 * n_read
    assert facts["bytes_per_token"]["fp16"] == facts["bytes_per_token"]["bf16"]
    assert n_read <= facts["bytes_per_token"]["int8"] < 1.3 * n_read


@pytest.mark.parametrize("name", MODELS)
def test_info_of_a_checkpoint_foretells_its_conversions(spelt, tmp_path, name):
    foretold = describe(spelt[name]["pth"])
    for dtype in DTYPES:
        convert_checkpoint(spelt[name]["pth"], tmp_path / dtype, dtype=dtype)
        facts = describe(tmp_path / dtype)
        assert facts["dtype"] == dtype
        assert facts["bytes_per_token"] == {dtype: foretold["bytes_per_token"][dtype]}
        same = set(facts) - {"path", "kind", "dtype", "bytes_per_token", "lora_ranks"}
        assert {key: facts[key] for key in same} == {key: foretold[key] for key in same}


def test_info_reports_blocks_that_never_run(checkpoint, fixtures, tmp_path):
    path = checkpoint("x64-5p2-quirk")
    facts = describe(path)
    assert (facts["n_rwkv"], facts["n_attn"], facts["n_unused"]) == (4, 2, 1)
    assert facts["block_order"] == "R0 R1 A0 R2 R3 A1"
    assert "R4" in run("info", str(path)).stdout
    convert_checkpoint(path, tmp_path / "m")
    assert describe(tmp_path / "m")["n_unused"] == 1


# ---------------------------------------------------------------- command line

app = typer.Typer()
app.command("convert")(convert_command)
app.command("info")(info_command)


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_the_commands_convert_and_describe(spelt, tmp_path):
    target = tmp_path / "m.safetensors"
    arguments = ["--dtype", "int8", "--moba-chunk-size", "16", "--moba-topk", "4"]
    done = run("convert", str(spelt["x128-6p2"]["pth"]), str(target), *arguments)
    assert done.exit_code == 0
    assert done.output == ""  # no progress where nobody watches
    facts = json.loads(run("info", str(target), "--json").stdout)
    assert facts == describe(target)
    assert facts["dtype"] == "int8"
    assert facts["policy_defaults"] == {"moba_chunk_size": 16, "moba_topk": 4}
    text = run("info", str(target)).stdout
    for expected in ("RWKV-X", "int8", "512 tokens", facts["block_order"], "moba_topk 4"):
        assert expected in text
    assert f"{facts['n_params']:,}" in text
    assert f"{facts['bytes_per_token']['int8']:,}" in text


def test_the_commands_fail_with_typed_errors_and_usage_errors(spelt, tmp_path):
    path = str(spelt["r7-s128"]["pth"])
    (tmp_path / "m").write_text("")
    assert isinstance(run("convert", path, str(tmp_path / "m")).exception, FileError)
    assert run("convert", path, str(tmp_path / "m"), "--force").exit_code == 0
    assert isinstance(run("info", str(tmp_path / "none")).exception, FileError)
    for wrong in (["--dtype", "int4"], ["--moba-topk", "0"], ["--moba-chunk-size", "x"]):
        assert run("convert", path, str(tmp_path / "x"), *wrong).exit_code == 2
    assert run("convert", path).exit_code == 2
    assert not (tmp_path / "x").exists()


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_converting_takes_the_memory_of_the_result_and_one_tensor(raw, tmp_path, kind):
    largest, wide = 32 << 20, dict(raw["r7-s128"])
    n_vocab = largest // (2 * 128)
    for name in ("emb.weight", "head.weight"):
        dtype, _, data = wide[name]
        wide[name] = (dtype, (n_vocab, 128), data * (n_vocab // 512))
    for i in range(3):  # not needed, but read: block 0 has no use for them
        wide[f"blocks.0.att.v{i}"] = ("BF16", (n_vocab, 128), bytes(largest))
    path = tmp_path / "in"
    if kind == "pth":
        pth_files.write_checkpoint(path, wide)
    else:
        checkpoint_files.write_safetensors(path, wide)
    script = textwrap.dedent("""
        import resource, sys
        from wkvm.formats.convert import convert_checkpoint
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        before = peak()
        convert_checkpoint(sys.argv[1], sys.argv[2], dtype="int8")
        print(peak() - before)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    out = (tmp_path / "out").stat().st_size
    assert out < 2 * largest
    assert int(done.stdout) < out + largest + (16 << 20)
