"""rwkv.cpp's files of RWKV-7: the same bits as the original, every block unpacked exactly."""

import random
import re
import struct

import checkpoint_files
import engines
import ggml_blocks
import limited_memory
import opened
import pytest
import rwkvcpp_files
import spellings
from opened import read_all

from wkvm.errors import FormatError, UnsupportedError
from wkvm.formats.fingerprint import weights_digest
from wkvm.formats.load import load_model
from wkvm.formats.open import open_checkpoint


@pytest.fixture(scope="module")
def tensors():
    return ggml_blocks.small_checkpoint()


@pytest.fixture(scope="module")
def spelt(tensors):
    return rwkvcpp_files.spelt(tensors, "F16")


def bits(path, n_vocab=64):
    return opened.bits(path, engines.tokens(24, n_vocab=n_vocab))


def refusal(path, match, errors=FormatError):
    with pytest.raises(errors, match=match) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the same checkpoint


@pytest.mark.parametrize("dtype", ["F32", "F16"])
@pytest.mark.parametrize("version", [100, 101])
def test_a_file_is_the_same_checkpoint_and_gives_the_same_bits(tmp_path, tensors, dtype, version):
    spelt = rwkvcpp_files.spelt(tensors, dtype)
    canonical = rwkvcpp_files.canonical(tensors, spelt)
    head = rwkvcpp_files.header(spelt, version, dtype)
    path = rwkvcpp_files.write(tmp_path / "model.bin", spelt, head)
    checkpoint_files.write_safetensors(tmp_path / "model.safetensors", canonical)
    original = tmp_path / "model.safetensors"
    assert read_all(path) == spellings.canonical(canonical)
    assert engines.differing(bits(path), bits(original)) == []
    with open_checkpoint(path) as ours, open_checkpoint(original) as theirs:
        assert ours.kind == "rwkv.cpp"
        assert weights_digest(ours) == weights_digest(theirs)


@pytest.mark.parametrize("kind", ggml_blocks.BLOCKS)
def test_quantised_matrices_are_unpacked_exactly(tmp_path, tensors, spelt, kind):
    blocks, values = rwkvcpp_files.quantised(spelt, kind)
    canonical = rwkvcpp_files.canonical(tensors, values)
    head = rwkvcpp_files.header(spelt, 101, kind)
    path = rwkvcpp_files.write(tmp_path / "model.bin", blocks, head)
    assert read_all(path) == spellings.canonical(canonical)
    checkpoint_files.write_safetensors(tmp_path / "model.safetensors", canonical)
    assert engines.differing(bits(path), bits(tmp_path / "model.safetensors")) == []


def test_a_real_model_gives_the_same_bits(tmp_path, fixtures):
    original = fixtures / "rwkv7_tiny" / "tiny-rwkv7-834K-fp32.safetensors"
    spelt = rwkvcpp_files.spelt(checkpoint_files.read(original))
    path = rwkvcpp_files.write(tmp_path / "model.bin", spelt)
    assert engines.differing(bits(path, 256), bits(original, 256)) == []


@pytest.mark.parametrize("size", [16, 32])
def test_other_head_sizes_give_the_same_bits(tmp_path, tensors, size):
    respelt = {
        name: (dtype, (64 // size, size) if name.endswith(".r_k") else shape, data)
        for name, (dtype, shape, data) in tensors.items()
    }
    path = rwkvcpp_files.write(tmp_path / "m.bin", rwkvcpp_files.spelt(respelt))
    checkpoint_files.write_safetensors(tmp_path / "m", respelt)
    assert engines.differing(bits(path), bits(tmp_path / "m")) == []


def test_the_origins_say_where_each_tensor_lies(tmp_path, spelt):
    blocks, _ = rwkvcpp_files.quantised(spelt, "Q5_1")
    with open_checkpoint(rwkvcpp_files.write(tmp_path / "m", blocks)) as source:
        origins = {t.name: o for t, o in zip(source.tensors, source.origins, strict=True)}
    assert origins["emb.weight"] == "emb.weight"
    assert origins["blocks.1.att.g2"] == "blocks.1.att.g2, Q5_1, transposed"
    assert origins["blocks.1.att.x_a"] == "blocks.1.att.x_rwkvag, row 4"


# ---------------------------------------------------------------- what is refused

OLDER = {
    "RWKV-4": {"time_mix_k": (64,), "time_decay": (64,), "time_first": (64,)},
    "RWKV-5": {"time_decay": (1, 64, 1), "time_faaaa": (1, 64, 1), "ln_x.weight": (64,)},
    "RWKV-6": {"time_maa_x": (64,), "time_maa_w2": (5, 64, 32), "time_faaaa": (1, 64, 1)},
}


@pytest.mark.parametrize("family", OLDER)
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_an_older_model_is_refused_by_name(tmp_path, spelt, family, dtype):
    kept = {
        name: raw
        for name, raw in spelt.items()
        if ".att." not in name or name.endswith(("key.weight", "value.weight", "output.weight"))
    }
    for part, shape in OLDER[family].items():
        n = 1
        for side in shape:
            n *= side
        data = bytes(n * checkpoint_files.SIZES[dtype])
        kept |= {f"blocks.{block}.att.{part}": (dtype, shape, data) for block in range(2)}
    path = rwkvcpp_files.write(tmp_path / "m", kept)
    refusal(path, rf"an {family}\b.* checkpoint", UnsupportedError)


def test_the_old_quantised_layouts_are_refused_with_the_reason(tmp_path, spelt):
    blocks, _ = rwkvcpp_files.quantised(spelt, "Q8_0")
    head = rwkvcpp_files.header(spelt, 100, "Q8_0")
    path = rwkvcpp_files.write(tmp_path / "m", blocks, head)
    refusal(path, r"is Q8_0 in a file of version 100, older than RWKV-7", UnsupportedError)


@pytest.mark.parametrize("number", [4, 5, 6, 10, 2**32 - 1])
def test_a_type_that_is_not_read_is_refused(tmp_path, spelt, number):
    _, shape, data = spelt["blocks.1.att.key.weight"]
    changed = spelt | {"blocks.1.att.key.weight": (number, shape, data)}
    path = rwkvcpp_files.write(tmp_path / "m", changed)
    refusal(path, rf"blocks\.1\.att\.key\.weight has .* type number {number}", UnsupportedError)


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1"])
def test_blocks_whose_values_are_no_float32_are_refused(tmp_path, spelt, kind):
    blocks, _ = rwkvcpp_files.quantised(spelt, kind)
    _, shape, data = blocks["blocks.0.att.key.weight"]
    broken = struct.pack("<2e", 2**-24, 1.0) + data[4:]
    changed = blocks | {"blocks.0.att.key.weight": (kind, shape, broken)}
    refusal(rwkvcpp_files.write(tmp_path / "m", changed), "no float32 number", UnsupportedError)


@pytest.mark.parametrize("version", [-1, 0, 99, 102])
def test_another_version_is_refused(tmp_path, spelt, version):
    path = rwkvcpp_files.write(tmp_path / "m", spelt, rwkvcpp_files.header(spelt, version))
    refusal(path, f"version {version}; wkvm reads 100 and 101", UnsupportedError)


@pytest.mark.parametrize(("at", "name"), [(2, "n_vocab"), (3, "n_embd"), (4, "n_layer")])
@pytest.mark.parametrize("value", [-1, 0, 1, 65, 2**31 - 1])
def test_a_header_that_contradicts_the_tensors_is_refused(tmp_path, spelt, at, name, value):
    head = rwkvcpp_files.header(spelt)
    actual = head[at]
    head[at] = value
    path = rwkvcpp_files.write(tmp_path / "m", spelt, head)
    refusal(path, f"header says {name} {value}, but its tensors have {actual}")


@pytest.mark.parametrize("shape", [(5, 1, 64), (6,), (1, 6, 64), (384,)])
def test_vectors_that_are_not_six_are_refused(tmp_path, spelt, shape):
    n = 4
    for side in shape:
        n *= side
    name = "blocks.1.att.x_rwkvag"
    changed = spelt | {name: ("F32", shape, spelt[name][2][:n])}
    refusal(rwkvcpp_files.write(tmp_path / "m", changed), r"x_rwkvag has shape .*\[6, n_embd\]")


# ---------------------------------------------------------------- strangers' files


def refused(folder, at_least):
    found = limited_memory.outcomes(folder)
    assert len(found) >= at_least
    assert {name: how for name, how in found.items() if not how.startswith("refused ")} == {}


def descriptions(tensors) -> dict[str, int]:
    """Where in the file the description of each tensor begins."""
    places, at = {}, 24
    for name, raw in tensors.items():
        places[name] = at
        at += len(rwkvcpp_files.tensor(name, *raw))
    return places


def test_a_whole_file_loads_in_that_memory(tmp_path, spelt):
    rwkvcpp_files.write(tmp_path / "m", spelt)
    assert limited_memory.outcomes(tmp_path) == {"m": "loaded"}


def test_truncated_files_are_refused(tmp_path, spelt):
    whole = rwkvcpp_files.write(tmp_path / "whole", spelt).read_bytes()
    (tmp_path / "out").mkdir()
    dice = random.Random(1)
    lengths = [dice.randrange(len(whole)) for _ in range(60)]
    lengths += [place + dice.randrange(24) for place in descriptions(spelt).values()]
    lengths += [*descriptions(spelt).values(), *range(4, 24, 4), len(whole) - 1]
    for i, length in enumerate(lengths):
        (tmp_path / "out" / f"{i:03}").write_bytes(whole[:length])
    refused(tmp_path / "out", 150)


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


def container(tensors) -> bytes:
    """A file of (name, type, shape, data), whose header says what ``small_checkpoint`` is."""
    head = struct.pack("<6i", rwkvcpp_files.MAGIC, 101, 64, 64, 2, 0)
    return head + b"".join(rwkvcpp_files.tensor(*tensor) for tensor in tensors)


W0 = "blocks.0.att.w0"
NAMES = {
    **dict.fromkeys(
        [
            *("../../etc/passwd", "/etc/passwd", f"{W0}/../../x", "blocks..att.w0"),
            *("blocks.-1.att.w0", "blocks.00.att.w0", "blocks.1e3.att.w0", f"{W0}\n", "x" * 1000),
            *("blocks.0.att.z0", "blocks.٣.att.w0", "blocks.9999999.att.w0", ""),
        ],
        r"\.w0 is missing",
    ),
    f"{W0}\0": "holds a zero byte",
    "emb.weight": r"it has two tensors emb\.weight",
    "blocks.1.att.w0": r"it has two tensors blocks\.1\.att\.w0",
    "blocks.0.att.x_r": r"makes blocks\.0\.att\.x_r, which another tensor makes too",
    "blocks.1.att.x_rwkvag": "it has two tensors",
    "blocks.7.att.x_rwkvag": "n_layer 2, but its tensors have 8",
    "blocks.999999.att.w0": "n_layer 2, but its tensors have 1000000",
    "blocks.0.ffn.s_emb.weight": "DeepEmbed",
    "blocks.0.qkv.x": "DEA",
    "x" * 65_536: "a tensor's name has 65536 bytes",
    "x" * 10**6: "a tensor's name has 1000000 bytes",
    b"\xff\xfe": "a tensor's name is not UTF-8",
}


def test_tricks_with_names_are_refused(tmp_path, spelt):
    files = {}
    for i, (name, match) in enumerate(NAMES.items()):
        changed = [(name if key == W0 else key, *raw) for key, raw in spelt.items()]
        files[f"{i:02}"] = container(changed), match
    refused_saying(tmp_path, files)


def test_tensors_that_do_not_fit_the_file_are_refused(tmp_path, spelt):
    whole = rwkvcpp_files.write(tmp_path / "whole", spelt).read_bytes()
    (tmp_path / "out").mkdir()
    more = {
        "sides": (("x", "F32", (), b""), r"tensor x has the shape \[\]"),
        "five": (("x", "F32", (1,) * 5, bytes(4)), "tensor x has the shape"),
        "many": (("x", "F32", (1,) * 65_537, bytes(4)), "claims 65537 sides"),
        "zero": (("x", "F32", (64, 0), b""), "tensor x has the shape"),
        "huge": (("x", "F32", (2**32 - 1,) * 4, b""), "tensor x .* beyond the end of the file"),
        "short": (("x", "F32", (64,), bytes(255)), "tensor x .* beyond the end of the file"),
        "row": (("x", "Q8_0", (2, 16), bytes(34)), "rows of 16, .* no whole blocks of Q8_0"),
        "surplus": (("x", "F32", (1,), bytes(4)), "tensor x is not part"),
    }
    files = {
        name: (whole + rwkvcpp_files.tensor(*raw), match) for name, (raw, match) in more.items()
    }
    for n in (1, 4, 11):
        files[f"rest-{n}"] = whole + bytes(n), "description of a tensor would reach beyond byte"
    names = (rwkvcpp_files.tensor(f"{i:04x}", "F16", (1,), bytes(2)) for i in range(2**16))
    files["count"] = whole + b"".join(names), "more than 65536 tensors"
    files["twice"] = whole + whole[24:], r"it has two tensors emb\.weight"
    refused_saying(tmp_path / "out", files)


def test_wrong_counts_and_absurd_sizes_are_refused(tmp_path, spelt):
    whole = rwkvcpp_files.write(tmp_path / "whole", spelt).read_bytes()
    (tmp_path / "out").mkdir()
    places = descriptions(spelt)
    dice = random.Random(2)
    for i in range(100):
        name = dice.choice(sorted(spelt))
        at = places[name] + 4 * (i % 4)  # number of sides, length of the name, type, a side
        old = whole[at : at + 4]
        choices = [0, 1, 2, 3, 5, 63, 65, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
        new = struct.pack("<I", dice.choice(choices))
        if new == old or (i % 4 == 0 and new == b"\1\0\0\0"):
            new = b"\xff\xff\xff\x7f"
        (tmp_path / "out" / f"{i:03}").write_bytes(whole[:at] + new + whole[at + 4 :])
    refused(tmp_path / "out", 100)


def test_a_missing_or_surplus_tensor_is_refused(tmp_path, spelt):
    head = rwkvcpp_files.header(spelt)
    dice = random.Random(3)
    needed = sorted(name for name in spelt if not name.startswith("blocks.0.att.v"))
    for i, name in enumerate(dice.sample(needed, 20)):
        less = {key: raw for key, raw in spelt.items() if key != name}
        rwkvcpp_files.write(tmp_path / f"missing-{i:02}", less, head)
        more = spelt | {name + "x": spelt[name]}
        rwkvcpp_files.write(tmp_path / f"surplus-{i:02}", more, head)
    refused(tmp_path, 40)


def test_any_damage_of_a_description_is_a_typed_error_or_harmless(tmp_path, spelt):
    whole = rwkvcpp_files.write(tmp_path / "whole", spelt).read_bytes()
    (tmp_path / "out").mkdir()
    spans = [range(4, 24)]
    for name, place in descriptions(spelt).items():
        spans.append(range(place, place + 12 + 4 * len(spelt[name][1]) + len(name)))
    dice = random.Random(4)
    for i in range(150):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 2, 8])):
            damaged[dice.choice(dice.choice(spans))] = dice.choice(
                b"\x00\x01\x02\x20\x7f\x80\xff.0"
            )
        (tmp_path / "out" / f"{i:03}").write_bytes(damaged)
    found = limited_memory.outcomes(tmp_path / "out")
    assert {name: how for name, how in found.items() if how.startswith("FAILED")} == {}
    assert sum(how.startswith("refused") for how in found.values()) >= 100
