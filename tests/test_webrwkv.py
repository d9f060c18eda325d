"""web-rwkv's .st files are told from BlinkDL's by their shapes, and give the same bits."""

import checkpoint_files
import engines
import opened
import pth_files
import pytest
import spellings

from wkvm.errors import FormatError
from wkvm.formats.export import export_checkpoint
from wkvm.formats.load import load_model
from wkvm.formats.open import open_checkpoint

PROMPT = engines.tokens(24, n_vocab=256)


@pytest.fixture(scope="module")
def tensors(checkpoint):
    """The synthetic checkpoint in float16, with values that every type holds."""
    rounded = spellings.rounded(checkpoint_files.read(checkpoint("r7-s128")))
    return spellings.all_as_type(rounded, "F16")


def write(path, tensors, metadata=None):
    checkpoint_files.write_safetensors(path, tensors, metadata)
    return path


def read_all(path):
    with open_checkpoint(path) as source:
        return source.kind, opened.read_all(path)


def bits(path):
    return opened.bits(path, PROMPT)


def test_a_transposed_file_is_the_same_checkpoint(tmp_path, tensors):
    path = write(tmp_path / "model.st", spellings.webrwkv(tensors))
    assert read_all(path) == ("web-rwkv safetensors", spellings.canonical(tensors))
    assert read_all(tmp_path)[0] == "web-rwkv safetensors"
    with open_checkpoint(path) as source:
        origins = {t.name: o for t, o in zip(source.tensors, source.origins, strict=True)}
    assert origins["blocks.1.att.w1"] == "blocks.1.att.w1, transposed"
    assert origins["blocks.1.att.w0"] == "blocks.1.att.w0"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_a_transposed_file_gives_the_same_bits_as_the_original(tmp_path, tensors, dtype):
    path = write(tmp_path / "model.st", spellings.webrwkv(tensors))
    original = write(tmp_path / "model", spellings.all_as_type(tensors, dtype))
    assert engines.differing(bits(path), bits(original)) == []


def test_a_real_model_gives_the_same_bits(tmp_path, fixtures):
    path = fixtures / "rwkv7_tiny" / "tiny-rwkv7-834K-bf16.pth"
    tensors = spellings.all_as_type(spellings.rounded(checkpoint_files.read(path)), "BF16")
    original = write(tmp_path / "m", tensors)
    assert (
        engines.differing(
            bits(write(tmp_path / "m.st", spellings.webrwkv(tensors))), bits(original)
        )
        == []
    )


@pytest.mark.parametrize("size", [32, 128])
def test_other_head_sizes_give_the_same_bits(tmp_path, tensors, size):
    shape = (128 // size, size)
    respelt = {n: (t, shape if n.endswith(".r_k") else s, d) for n, (t, s, d) in tensors.items()}
    path = write(tmp_path / "model.st", spellings.webrwkv(respelt))
    original = write(tmp_path / "model.safetensors", respelt)
    assert engines.differing(bits(path), bits(original)) == []


def test_a_file_of_blinkdl_s_is_left_as_it_is(tmp_path, tensors):
    kind, found = read_all(write(tmp_path / "model.st", tensors))
    assert (kind, found) == ("safetensors", spellings.canonical(tensors))


def squared(tensors):
    """The checkpoint with LoRA pairs of rank D."""

    def grown(name, raw):
        dtype, _, data = raw
        if not name.endswith((*(f".att.{gate}{i}" for gate in "wavg" for i in "12"),)):
            return raw
        return dtype, (128, 128), (data * 128)[: 128 * 128 * checkpoint_files.SIZES[dtype]]

    return {name: grown(name, raw) for name, raw in tensors.items()}


def test_square_matrices_of_float16_are_refused_where_nothing_tells(tmp_path, tensors):
    square = squared(tensors)
    with pytest.raises(FormatError, match=r"nothing tells .* open the \.pth"):
        load_model(write(tmp_path / "m.st", square))
    assert read_all(pth_files.write_checkpoint(tmp_path / "m.pth", square))[0] == "pth"
    bf16 = spellings.all_as_type(square, "BF16")
    assert read_all(write(tmp_path / "bf16", bf16)) == ("safetensors", spellings.canonical(bf16))
    one = square | {"blocks.2.att.g1": tensors["blocks.2.att.g1"]}
    assert read_all(write(tmp_path / "one.st", one))[0] == "safetensors"
    assert read_all(write(tmp_path / "o.st", spellings.webrwkv(one)))[0] == "web-rwkv safetensors"


def test_what_wkvm_exports_is_never_in_doubt(tmp_path, tensors):
    pth = pth_files.write_checkpoint(tmp_path / "m.pth", squared(tensors))
    export_checkpoint(pth, tmp_path / "m.safetensors", "blinkdl")
    assert read_all(tmp_path / "m.safetensors") == ("safetensors", read_all(pth)[1])


@pytest.mark.parametrize("shape", [(32, 64), (16, 256), (4096,), (1, 32, 128)])
def test_a_matrix_of_a_wrong_shape_is_refused(tmp_path, tensors, shape):
    respelt = spellings.webrwkv(tensors)
    dtype, _, data = respelt["blocks.1.att.w1"]
    n_bytes = 2
    for side in shape:
        n_bytes *= side
    respelt["blocks.1.att.w1"] = (dtype, shape, data[:n_bytes])
    with pytest.raises(FormatError, match=r"blocks\.1\.att\.w1"):
        load_model(write(tmp_path / "m.st", respelt))
