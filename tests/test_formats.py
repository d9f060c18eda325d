"""Checkpoints are recognised by content, checked to the byte, and written the same way always."""

import gzip
import hashlib
import json
import os
import random
import stat
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import checkpoint_files
import numpy as np
import pth_files
import pytest
import safetensors
import safetensors.numpy
from opened import read_all

from wkvm.errors import FileError, FormatError, InvalidArgumentError, UnsupportedError, WkvmError
from wkvm.formats.fingerprint import model_fingerprint, weights_digest
from wkvm.formats.names import canonical_name
from wkvm.formats.open import open_checkpoint
from wkvm.formats.source import TensorInfo
from wkvm.formats.write import OutTensor
from wkvm.formats.write import write_safetensors as write_tensors

REFUSED = (FormatError, UnsupportedError)

#: Three small tensors: name -> (type, shape, bytes).
TENSORS = {
    "a": ("F32", (2, 3), bytes(range(24))),
    "b": ("BF16", (5,), bytes(range(100, 110))),
    "moba.blocks.0.c": ("U8", (), b"x"),
}
EXPECTED = {
    canonical_name(name): (dtype.lower(), shape, data)
    for name, (dtype, shape, data) in TENSORS.items()
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_safetensors(path, tensors, metadata, **options):
    """`write_safetensors` over (name, type, shape, data)."""
    out = [OutTensor(TensorInfo(*t[:3]), lambda data=t[3]: data) for t in tensors]
    write_tensors(path, out, metadata, **options)


def refusal(path, match=None, errors=REFUSED):
    """The message with which opening and reading `path` is refused: one line."""
    with pytest.raises(errors, match=match) as info:
        read_all(path)
    message = str(info.value)
    assert message
    assert "\n" not in message
    return message


def container(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("moba.blocks.3.att.key.weight", "moba.3.att.key.weight"),
        ("moba.3.att.key.weight", "moba.3.att.key.weight"),
        ("rwkv.blocks.3.att.w0", "rwkv.blocks.3.att.w0"),
        ("blocks.3.att.w0", "blocks.3.att.w0"),
        ("x.moba.blocks.3", "x.moba.blocks.3"),
        ("moba.blocks", "moba.blocks"),
        ("", ""),
    ],
)
def test_only_the_alias_of_attention_blocks_is_renamed(name, canonical):
    assert canonical_name(name) == canonical
    assert canonical_name(canonical) == canonical


# ---------------------------------------------------------------- recognition


@pytest.fixture
def spelt(tmp_path):
    """One checkpoint in every spelling: kind -> path to open."""
    files = {
        "safetensors": tmp_path / "single" / "model.safetensors",
        "pth": tmp_path / "model.pth",
        "sharded safetensors": checkpoint_files.write_sharded(tmp_path / "sharded", TENSORS, 2),
    }
    files["safetensors"].parent.mkdir()
    checkpoint_files.write_safetensors(files["safetensors"], TENSORS)
    pth_files.write_checkpoint(files["pth"], TENSORS)
    return files


@pytest.mark.parametrize("kind", ["safetensors", "pth", "sharded safetensors"])
def test_every_spelling_gives_the_same_canonical_tensors(spelt, kind):
    path = spelt[kind]
    assert read_all(path) == EXPECTED
    assert read_all(str(path)) == EXPECTED
    with open_checkpoint(path) as source:
        assert source.kind == kind
        assert source.path == path


@pytest.mark.parametrize("name", ["model.bin", "model.pth", "model.safetensors", "model", "x.gguf"])
@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_the_kind_is_recognised_from_content_not_from_the_name(spelt, kind, name):
    path = spelt[kind].rename(spelt[kind].with_name(name))
    assert read_all(path) == EXPECTED


def test_an_index_may_have_any_name(spelt):
    index = spelt["sharded safetensors"]
    assert read_all(index.rename(index.with_name("other"))) == EXPECTED


@pytest.mark.parametrize("kind", ["safetensors", "sharded safetensors"])
def test_a_folder_stands_for_the_checkpoint_in_it(spelt, kind):
    assert read_all(spelt[kind].parent) == EXPECTED


def test_a_folder_stands_for_the_only_pth_in_it(spelt, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    spelt["pth"].rename(folder / "model.pth")
    assert read_all(folder) == EXPECTED


def test_a_header_that_begins_like_json_is_still_a_safetensors_file(tmp_path):
    length = ord("{")  # the first byte of the file
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "m").write_bytes(container(header.ljust(length), b"x"))
    assert read_all(tmp_path / "m") == {"a": ("u8", (1,), b"x")}


def test_metadata_is_optional_and_kept(tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "a", TENSORS, {"format": "pt", "ключ": "值\n"})
    with open_checkpoint(tmp_path / "a") as source:
        assert source.metadata == {"format": "pt", "ключ": "值\n"}
    checkpoint_files.write_safetensors(tmp_path / "b", TENSORS)
    with open_checkpoint(tmp_path / "b") as source:
        assert source.metadata == {}


OTHERS = {
    "empty": (b"", "is empty"),
    "one byte": (b"x", "not a .safetensors"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(40), "GGUF"),
    "rwkv.cpp": (struct.pack("<IIIIII", 0x67676D66, 101, 256, 64, 12, 0), r"rwkv\.cpp"),
    "old pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "1.6"),
    "tar pth": (b"data".ljust(257, b"\0") + b"ustar\0" + bytes(249), "tar file"),
    "gzip": (gzip.compress(b"model"), "gunzip"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
    "html": (b"<!DOCTYPE html><html></html>", "web page"),
    "text": (b"Hello, this is a readme file.\n", r"wkvm opens .*\.safetensors.*\.pth"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "wkvm opens"),
    "onnx": (b"\x08\x07\x12\x07pytorch" + bytes(40), "wkvm opens"),
    "zeros": (bytes(100), "header"),
    "ones": (b"\xff" * 100, "wkvm opens"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(40), "wkvm opens"),
    "json list": (b"[1, 2]", "wkvm opens|first 8 bytes"),
    "json": (b'{"a": 1}\n', "weight_map"),
    "config": (b'{"architectures": ["RWKV7ForCausalLM"], "hidden_size": 64}', "weight_map"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_container_is_refused_as_what_it_is(tmp_path, name):
    content, match = OTHERS[name]
    path = tmp_path / "other.safetensors"
    path.write_bytes(content)
    assert str(path) in refusal(path, match)


def test_what_is_not_a_file_is_refused(tmp_path):
    refusal(tmp_path / "missing", "No such file", FileError)
    refusal(tmp_path, "is a folder without")
    os.mkfifo(tmp_path / "pipe")
    refusal(tmp_path / "pipe", "not a regular file")
    refusal("/dev/zero", "not a regular file")
    refusal("a\0b", errors=InvalidArgumentError)
    (tmp_path / "loop").symlink_to("loop")
    refusal(tmp_path / "loop", errors=FileError)


@pytest.mark.parametrize(
    "names",
    [("one.safetensors", "two.safetensors"), ("one.pth", "two.pth"), ("m.pth", "m.safetensors")],
)
def test_a_folder_with_two_checkpoints_is_refused_with_their_names(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    refusal(tmp_path, f"several checkpoints, {', '.join(names)}: name the one to open")


def test_a_folder_with_many_checkpoints_is_refused_with_some_names(tmp_path):
    for i in range(20):
        (tmp_path / f"{i:02}.pth").write_bytes(b"")
    assert "07.pth and 12 more" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(spelt):
    for path in spelt.values():
        path.chmod(0)
        refusal(path, "ermission", FileError)


@pytest.mark.parametrize("kind", ["safetensors", "pth", "sharded safetensors"])
def test_a_closed_source_is_refused_and_its_arrays_live_on(spelt, kind):
    with open_checkpoint(spelt[kind]) as source:
        index = [tensor.name for tensor in source.tensors].index("a")
        data = source.read(index)
        source.evict(index)
    with pytest.raises(WkvmError):
        source.read(0)
    assert data.tobytes() == TENSORS["a"][2]


@pytest.mark.parametrize("kind", ["safetensors", "pth", "sharded safetensors"])
def test_a_file_that_changes_while_it_is_open_is_noticed(spelt, kind):
    with open_checkpoint(spelt[kind]) as source:
        source.check_unchanged()
        file = source.files[-1]
        os.utime(file, ns=(0, 0))
        with pytest.raises(FileError, match="changed"):
            source.check_unchanged()
        file.unlink()
        with pytest.raises(FileError):
            source.check_unchanged()


# ---------------------------------------------------------------- broken .safetensors

T = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
BROKEN_HEADERS = {
    "null": None,
    "list": [],
    "string": "x",
    "number": 7,
    "not json": b"{]",
    "two objects": b"{}{}",
    "bare word": b"{a: 1}",
    "single quotes": b"{'a': 1}",
    "comment": b"{} // no",
    "trailing comma": b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "utf-16": "{}".encode("utf-16-le"),
    "latin-1": b'{"\xe9": {}}',
    "raw newline in a name": b'{"a\n": {}}',
    "deep list": b'{"a":' + b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "tensor is null": {"a": None},
    "tensor is a list": {"a": [T]},
    "tensor is empty": {"a": {}},
    "no dtype": {"a": {"shape": [4], "data_offsets": [0, 4]}},
    "no shape": {"a": {"dtype": "U8", "data_offsets": [0, 4]}},
    "no offsets": {"a": {"dtype": "U8", "shape": [4]}},
    "dtype is null": {"a": T | {"dtype": None}},
    "dtype is unknown": {"a": T | {"dtype": "U7"}},
    "dtype is lower case": {"a": T | {"dtype": "u8"}},
    "dtype is float8": {"a": T | {"dtype": "F8_E5M2"}},
    "dtype is float4": {"a": T | {"dtype": "F4", "shape": [8]}},
    "dtype is complex": {"a": T | {"dtype": "C64", "shape": []}},
    "dtype is larger": {"a": T | {"dtype": "F32"}},
    "dtype is smaller": {"a": T | {"dtype": "U8", "shape": [2]}},
    "shape is a number": {"a": T | {"shape": 4}},
    "shape is negative": {"a": T | {"shape": [-4]}},
    "two negative sides": {"a": T | {"shape": [-2, -2]}},
    "shape is a float": {"a": T | {"shape": [4.0]}},
    "shape is text": {"a": T | {"shape": ["4"]}},
    "shape is nested": {"a": T | {"shape": [[4]]}},
    "shape is true": {"a": T | {"shape": [True, 4]}},
    "shape is zero": {"a": T | {"shape": [4, 0]}},
    "shape overflows to 4": {"a": T | {"shape": [2**62 + 1, 4]}},
    "shape overflows to 0": {"a": T | {"shape": [2**32, 2**32]}},
    "shape beyond 64 bits": {"a": T | {"shape": [2**64]}},
    "shape of a thousand digits": {"a": T | {"shape": [10**1000]}},
    "nine dimensions": {"a": T | {"shape": [1] * 8 + [4]}},
    "a million dimensions": {"a": T | {"shape": [1] * 1_000_000}},
    "offsets are one": {"a": T | {"data_offsets": [4]}},
    "offsets are three": {"a": T | {"data_offsets": [0, 2, 4]}},
    "offsets are an object": {"a": T | {"data_offsets": {"begin": 0, "end": 4}}},
    "offsets are negative": {"a": T | {"data_offsets": [-4, 0]}},
    "offsets are floats": {"a": T | {"data_offsets": [0.0, 4.0]}},
    "offsets are reversed": {"a": T | {"data_offsets": [4, 0]}},
    "offsets beyond the file": {"a": T | {"data_offsets": [4, 8]}},
    "offsets wrap around": {"a": T | {"data_offsets": [2**64 - 4, 0]}},
    "offsets far away": {"a": T | {"data_offsets": [2**63, 2**63 + 4]}},
    "offsets beyond 64 bits": {"a": T | {"data_offsets": [2**64, 2**64 + 4]}},
    "a gap at the start": {"a": T | {"shape": [3], "data_offsets": [1, 4]}},
    "data left at the end": {"a": T | {"shape": [3], "data_offsets": [0, 3]}},
    "no tensor for the data": {},
    "a gap between": {
        "a": T | {"shape": [1], "data_offsets": [0, 1]},
        "b": T | {"shape": [2], "data_offsets": [2, 4]},
    },
    "an overlap": {
        "a": T | {"shape": [3], "data_offsets": [0, 3]},
        "b": T | {"shape": [2], "data_offsets": [2, 4]},
    },
    "the same place twice": {"a": T, "b": T},
    "an empty tensor inside another": {"a": T, "b": T | {"shape": [0], "data_offsets": [2, 2]}},
    "an unknown field": {"a": T | {"strides": [1]}},
    "a name twice": b'{"a": %b, "a": %b}' % (2 * (json.dumps(T).encode(),)),
    "a name twice by escape": b'{"a": %b, "\\u0061": %b}' % (2 * (json.dumps(T).encode(),)),
    "a name with a zero byte": {"a\0b": T},
    "a name that is half a character": b'{"\\ud83d": %b}' % json.dumps(T).encode(),
    "alias and canonical": {
        "moba.blocks.0.x": T | {"shape": [2], "data_offsets": [0, 2]},
        "moba.0.x": T | {"shape": [2], "data_offsets": [2, 4]},
    },
    "metadata is null": {"__metadata__": None, "a": T},
    "metadata is a list": {"__metadata__": [], "a": T},
    "metadata is nested": {"__metadata__": {"a": {}}, "a": T},
    "metadata is a number": {"__metadata__": {"a": 1}, "a": T},
    "metadata is a tensor": {"__metadata__": T},
    "metadata with a zero byte": {"__metadata__": {"a": "\0"}, "a": T},
    "metadata twice": b'{"__metadata__": {}, "__metadata__": {}, "a": %b}' % json.dumps(T).encode(),
}


@pytest.mark.parametrize("name", BROKEN_HEADERS)
def test_a_broken_header_is_refused(tmp_path, name):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(container(BROKEN_HEADERS[name], b"data"))
    assert "broken.safetensors" in refusal(path)


def test_the_right_header_of_these_is_read(tmp_path):
    (tmp_path / "m").write_bytes(container({"__metadata__": {}, "a": T}, b"data"))
    assert read_all(tmp_path / "m") == {"a": ("u8", (4,), b"data")}


def test_every_truncation_and_every_surplus_byte_is_refused(tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "whole", TENSORS)
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut.safetensors"
    lengths = range(len(whole))
    assert len(lengths) > 200
    for length in lengths:
        path.write_bytes(whole[:length])
        assert "cut.safetensors" in refusal(path)
    path.write_bytes(whole + b"\0")
    refusal(path, "belong to no tensor")


@pytest.mark.parametrize("length", [0, 1, 2**16, 10**8, 10**8 + 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_a_wrong_length_of_the_header_is_refused(tmp_path, length):
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", length) + container({"a": T}, b"data")[8:])
    refusal(path)


def test_any_damage_is_a_typed_error_or_harmless(tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "whole", TENSORS, {"a": "b"})
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "damaged"
    dice = random.Random(3)
    n_refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 1, 2, 8])):
            damaged[dice.randrange(len(damaged))] = dice.choice([0, 0x20, 0x22, 0x30, 0xFF])
        path.write_bytes(damaged)
        try:
            n_bytes = sum(len(data) for _, _, data in read_all(path).values())
            assert n_bytes == sum(len(data) for _, _, data in TENSORS.values())
        except REFUSED:
            n_refused += 1
    assert n_refused > 500


def test_claims_do_not_become_memory(tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    huge = {"a": T | {"shape": [2**42], "data_offsets": [0, 2**42]}}
    (folder / "header").write_bytes(struct.pack("<Q", 10**8) + b"{")
    (folder / "shape").write_bytes(container(huge, b"data"))
    (folder / "dimensions").write_bytes(container({"a": T | {"shape": [1] * 10**6}}, b"data"))
    (folder / "name").write_bytes(container({"x" * 10**7: T}, b"da"))
    (folder / "index").write_bytes(b'{"weight_map": {"a": "' + b"x" * (1 << 28) + b'"}}')
    (folder / "index_lists").write_bytes(b'{"weight_map": [' + b"[]," * (1 << 20) + b"[]]}")
    (folder / "index_deep").write_bytes(b'{"weight_map": ' + b"[" * (1 << 20))
    (folder / "index_number").write_bytes(b'{"weight_map": ' + b"9" * (1 << 20) + b"}")
    script = textwrap.dedent("""
        import re, resource, sys
        from pathlib import Path
        from wkvm.errors import FormatError
        from wkvm.formats.open import open_checkpoint
        used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
        limit = used + (200 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for path in sorted(Path(sys.argv[1]).iterdir()):
            try:
                open_checkpoint(path)
                print(path.name, "opened")
            except FormatError as error:
                print(path.name, "refused:", str(error)[:200])
            except BaseException as error:
                print(path.name, "FAILED:", repr(error)[:200])
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == len(list(folder.iterdir()))
    assert [line for line in lines if " refused: " not in line] == []


# ---------------------------------------------------------------- shards

SHARD = "model-00001-of-00002.safetensors"


def edit_index(index, edit):
    content = json.loads(index.read_text())
    edit(content)
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "../sharded/" + SHARD,
        "./" + SHARD,
        "sub/" + SHARD,
        "/etc/passwd",
        "/etc/x.safetensors",
        "..",
        ".",
        "",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x.safetensors\0",
        "x\0.safetensors",
        "x\n.safetensors",
        "x" * 300 + ".safetensors",
        "model.pth",
        "missing.safetensors ",
        "\ud800.safetensors",
    ],
    ids=repr,
)
def test_a_shard_that_is_not_a_plain_name_is_refused(spelt, shard):
    index = spelt["sharded safetensors"]
    checkpoint_files.write_safetensors(index.parent.parent / "outside.safetensors", TENSORS)
    edit_index(index, lambda content: content["weight_map"].update(a=shard))
    refusal(index, "not the plain name")


def test_a_missing_shard_is_named(spelt):
    index = spelt["sharded safetensors"]
    (index.parent / SHARD).unlink()
    assert SHARD in refusal(index, errors=FileError)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda c: c["weight_map"].update(z=SHARD), "tensor z is not in"),
        (lambda c: c["weight_map"].pop("a"), "tensor a, which the index does not expect"),
        (lambda c: c["weight_map"].update(b=SHARD), "tensor b is not in"),
        (
            lambda c: c["weight_map"].update(a=SHARD.replace("1-", "2-")),
            "tensor a, which the index does not expect",
        ),
        (lambda c: c.pop("weight_map"), "weight_map"),
        (lambda c: c.update(weight_map={}), "weight_map"),
        (lambda c: c.update(weight_map=[]), "weight_map"),
        (lambda c: c.update(weight_map=None), "weight_map"),
        (lambda c: c["weight_map"].update(a=None), "no file name"),
        (lambda c: c["weight_map"].update(a=7), "no file name"),
        (lambda c: c["weight_map"].update(a=[SHARD]), "no file name"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_is_refused(spelt, edit, match):
    edit_index(spelt["sharded safetensors"], edit)
    refusal(spelt["sharded safetensors"], match)


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        b'{"weight_map": {"a": NaN}}',
        b'{"weight_map": {"\xff": "x.safetensors"}}',
        b'{"weight_map": ' + b"[" * 100_000,
        b'{"weight_map": ' + b"1" * 10_000 + b"}",
        b'{"weight_map": {}} {}',
    ],
    ids=range(7),
)
def test_a_damaged_index_is_refused(tmp_path, text):
    (tmp_path / "index.json").write_bytes(text)
    assert "index.json" in refusal(tmp_path / "index.json")


def test_a_broken_shard_is_named(spelt):
    shard = spelt["sharded safetensors"].parent / SHARD
    shard.write_bytes(shard.read_bytes()[:-1])
    assert SHARD in refusal(spelt["sharded safetensors"], "truncated")


def test_metadata_that_all_shards_share_is_kept(tmp_path):
    for name, metadata in (("1", {"format": "pt", "x": "1"}), ("2", {"format": "pt", "x": "2"})):
        checkpoint_files.write_safetensors(
            tmp_path / f"{name}.safetensors", {name: TENSORS["a"]}, metadata
        )
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"weight_map": {"1": "1.safetensors", "2": "2.safetensors"}}))
    with open_checkpoint(index) as source:
        assert source.metadata == {"format": "pt"}


# ---------------------------------------------------------------- our own files

OUT = [
    ("b", "f32", (3, 5), np.arange(15, dtype=np.float32)),
    ("a", "u8", (64,), np.arange(64, dtype=np.uint8)),
    ("c", "bf16", (7,), np.arange(7, dtype=np.uint16)),
    ("é😀\n", "i64", (), np.array(-3)),
    ("empty", "f16", (0, 4), np.zeros((0, 4), np.float16)),
    ("z", "i8", (1,), np.array([-128], np.int8)),
]
METADATA = {"zwei": "2", "eins": "1\n", "__x": "é"}


def test_our_files_open_with_the_official_library(tmp_path):
    path = tmp_path / "m.safetensors"
    write_safetensors(path, OUT, METADATA)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == METADATA
        ours = {name for name, *_ in OUT}
        names = set(file.keys())
        assert {name for name in names if not name.startswith("__pad.")} == ours
        for name, dtype, shape, data in OUT:
            if dtype != "bf16":  # which NumPy lacks
                tensor = file.get_tensor(name)
                assert tensor.shape == shape
                assert tensor.tobytes() == data.tobytes()


def test_our_files_read_back_exactly_and_without_the_padding(tmp_path):
    write_safetensors(tmp_path / "m", OUT, METADATA)
    assert read_all(tmp_path / "m") == {
        name: (dtype, shape, data.tobytes()) for name, dtype, shape, data in OUT
    }
    with open_checkpoint(tmp_path / "m") as source:
        assert source.metadata == METADATA


def test_data_and_every_tensor_begin_at_multiples_of_64(tmp_path):
    write_safetensors(tmp_path / "m", OUT, METADATA)
    content = (tmp_path / "m").read_bytes()
    n = int.from_bytes(content[:8], "little")
    assert (8 + n) % 64 == 0
    header = json.loads(content[8 : 8 + n])
    header.pop("__metadata__")
    begins = {name: entry["data_offsets"][0] for name, entry in header.items()}
    ours = [name for name in begins if not name.startswith("__pad.")]
    assert ours == sorted(name for name, *_ in OUT)
    assert all(begins[name] % 64 == 0 for name in ours)
    assert len(begins) - len(ours) == 3  # after b, c and é😀: empty and z have nothing to fill


def test_the_same_content_gives_the_same_bytes(tmp_path):
    write_safetensors(tmp_path / "a", OUT, METADATA)
    write_safetensors(tmp_path / "b", OUT[::-1], dict(reversed(METADATA.items())))
    script = textwrap.dedent("""
        import sys
        sys.path[:0] = sys.argv[1].split(":")
        from test_formats import METADATA, OUT, write_safetensors
        write_safetensors(sys.argv[2], OUT, METADATA)
    """)
    subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / "c")],
        env=os.environ | {"PYTHONHASHSEED": "99"},
        check=True,
    )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


def test_a_file_without_tensors_or_metadata_is_valid(tmp_path):
    write_safetensors(tmp_path / "m", [], {})
    assert read_all(tmp_path / "m") == {}
    assert safetensors.numpy.load_file(tmp_path / "m") == {}


def test_an_existing_file_is_only_replaced_on_demand(tmp_path):
    path = tmp_path / "m"
    path.write_text("mine")
    with pytest.raises(FileError, match=r"exists: name another file.*\(overwrite=True, --force\)"):
        write_safetensors(path, OUT, {})
    assert path.read_text() == "mine"
    write_safetensors(path, OUT, {}, overwrite=True)
    assert len(read_all(path)) == len(OUT)
    assert os.listdir(tmp_path) == ["m"]


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_safetensors(tmp_path / "m", OUT, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "tensors",
    [
        [OUT[0], OUT[0]],
        [("__metadata__", *OUT[0][1:])],
        [("__pad.0", *OUT[0][1:])],
        [("a", "f32", (4,), np.zeros(5, np.float32))],
        [("a", "f32", (4,), np.zeros(8, np.float32)[::2])],
    ],
    ids=["twice", "metadata", "padding", "size", "strided"],
)
def test_wrong_tensors_leave_nothing_behind(tmp_path, tensors):
    with pytest.raises(InvalidArgumentError):
        write_safetensors(tmp_path / "m", tensors, {})
    assert os.listdir(tmp_path) == []


def test_an_interrupted_write_leaves_nothing_behind(tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(tmp_path / "m", OUT, {}, progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_a_typed_error_and_leaves_nothing_behind(tmp_path):
    script = textwrap.dedent("""
        import resource, signal, sys
        import numpy as np
        from wkvm.errors import FileError
        from wkvm.formats.source import TensorInfo
        from wkvm.formats.write import OutTensor, write_safetensors
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        data = np.zeros(1 << 19, np.uint8)
        tensors = [OutTensor(TensorInfo(str(i), "u8", data.shape), lambda: data) for i in range(4)]
        try:
            write_safetensors(sys.argv[1], tensors, {})
        except FileError as error:
            print(error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"cannot write {tmp_path / 'm'}: ")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_a_typed_error(tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        write_safetensors(tmp_path / "none" / "m", OUT, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        write_safetensors(tmp_path / "file" / "m", OUT, {})
    with pytest.raises(InvalidArgumentError, match="zero byte"):
        write_safetensors(tmp_path / "a\0b", OUT, {})


# ---------------------------------------------------------------- fingerprints


def digest(path, **options):
    with open_checkpoint(path) as source:
        return weights_digest(source, **options)


def test_every_spelling_has_the_same_digest(spelt):
    digests = {digest(path) for path in spelt.values()}
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_the_digest_is_the_documented_one(spelt):
    expected = hashlib.sha256(b"wkvm weights 1\n")
    for name, (dtype, shape, data) in sorted(EXPECTED.items()):
        sides = ",".join(map(str, shape))
        expected.update(f"{len(name)}:{name} {dtype} {sides}\n".encode() + data)
    assert digest(spelt["safetensors"]) == expected.hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"a": ("F32", (3, 2), TENSORS["a"][2])},
        {"a": ("I32", (2, 3), TENSORS["a"][2])},
        {"a": ("F32", (2, 3), TENSORS["a"][2][:-1] + b"\0")},
        {"d": TENSORS["a"]},
    ],
)
def test_any_change_of_the_weights_changes_the_digest(spelt, tmp_path, change):
    checkpoint_files.write_safetensors(tmp_path / "other", TENSORS | change)
    assert digest(tmp_path / "other") != digest(spelt["safetensors"])


def test_a_renamed_tensor_changes_the_digest(spelt, tmp_path):
    renamed = {("d" if name == "a" else name): raw for name, raw in TENSORS.items()}
    checkpoint_files.write_safetensors(tmp_path / "other", renamed)
    assert digest(tmp_path / "other") != digest(spelt["safetensors"])


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "wkvm" / "weights"


def test_a_digest_is_computed_once_per_file(spelt, cache):
    right = digest(spelt["pth"])
    (entry,) = cache.iterdir()
    entry.write_text("0" * 64)
    assert digest(spelt["pth"]) == "0" * 64
    assert digest(spelt["pth"], use_cache=False) == right
    assert digest(spelt["pth"]) == right
    os.utime(spelt["pth"], ns=(1, 1))  # which makes it another file
    entry.write_text("0" * 64)
    assert digest(spelt["pth"]) == right


@pytest.mark.parametrize("content", ["", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n", "é" * 64])
def test_a_damaged_cache_entry_is_ignored(spelt, cache, content):
    right = digest(spelt["pth"])
    (entry,) = cache.iterdir()
    entry.write_text(content)
    assert digest(spelt["pth"]) == right
    assert entry.read_text() == right


def test_a_cache_that_cannot_be_written_does_not_matter(spelt, tmp_path, monkeypatch):
    right = digest(spelt["pth"])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert digest(spelt["pth"]) == right


@pytest.mark.parametrize("relative", ["", "cache", "./cache", "~/cache"])
def test_the_cache_is_at_home_unless_an_absolute_folder_is_named(
    spelt, tmp_path, monkeypatch, relative
):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    digest(spelt["pth"])
    assert len(list((tmp_path / "home" / ".cache" / "wkvm" / "weights").iterdir())) == 1
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "home"])


@pytest.mark.parametrize("home", [None, "~", "home", "."])
def test_without_a_home_there_is_no_cache(spelt, tmp_path, monkeypatch, home):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", unknown)
    else:
        monkeypatch.setenv("HOME", home)
    right = digest(spelt["pth"])
    assert digest(spelt["pth"]) == right
    assert sorted(os.listdir(tmp_path)) == before


def test_the_cache_keeps_the_newest_entries(spelt, cache):
    cache.mkdir(parents=True)
    for i in range(300):
        (cache / f"{i:03}").write_text("0" * 64)
        os.utime(cache / f"{i:03}", ns=(i, i))
    digest(spelt["pth"])
    kept = sorted(entry.name for entry in cache.iterdir() if len(entry.name) == 3)
    assert kept == [f"{i:03}" for i in range(45, 300)]
    assert len(list(cache.iterdir())) == 256


def test_a_converted_file_must_say_what_it_was_made_from(tmp_path):
    for recorded in ({}, {"wkvm.weights_sha256": "0" * 63}, {"wkvm.weights_sha256": "G" * 64}):
        metadata = {"wkvm.packed": "1", **recorded}
        write_safetensors(tmp_path / "m", OUT, metadata, overwrite=True)
        with pytest.raises(FormatError, match="convert the original again"):
            digest(tmp_path / "m")
    metadata["wkvm.weights_sha256"] = "a" * 64
    write_safetensors(tmp_path / "m", OUT, metadata, overwrite=True)
    assert digest(tmp_path / "m") == "a" * 64


def test_a_model_s_fingerprint_tells_weights_type_and_vocabulary_apart():
    fingerprints = {
        model_fingerprint(weights, dtype, vocab)
        for weights in ("a" * 64, "b" * 64)
        for dtype in ("fp16", "int8")
        for vocab in ("c" * 64, "d" * 64)
    }
    assert len(fingerprints) == 8
    assert model_fingerprint("a", "b", "c") == model_fingerprint("a", "b", "c")


def test_a_zip_that_hides_behind_a_safetensors_header_is_read_as_what_it_begins_with(tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "m", TENSORS)
    with zipfile.ZipFile(tmp_path / "m", "a") as archive:
        archive.writestr("archive/data.pkl", b"")
    refusal(tmp_path / "m", "belong to no tensor")
