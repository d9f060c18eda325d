"""fla's and Hugging Face's folders open as the checkpoints they were made from, or not at all."""

import json
import os
import re
import shutil

import checkpoint_files
import engines
import pth_files
import pytest
import spellings
from opened import bits, read_all

from wkvm.errors import FileError, FormatError, UnsupportedError
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.fingerprint import weights_digest
from wkvm.formats.load import load_model, new_builder
from wkvm.formats.open import open_checkpoint

PROMPT = engines.tokens(24, n_vocab=256)


@pytest.fixture(scope="module")
def tensors(checkpoint):
    """The synthetic checkpoint, less what fla has no place for."""
    return spellings.without_first_v(checkpoint_files.read(checkpoint("r7-s128")))


@pytest.fixture(scope="module")
def original(tensors, tmp_path_factory):
    """The same as BlinkDL spells it."""
    path = tmp_path_factory.mktemp("original") / "model.safetensors"
    checkpoint_files.write_safetensors(path, tensors)
    return path


@pytest.fixture
def config(tensors):
    return spellings.hf_config(tensors)


def digest(path):
    with open_checkpoint(path) as source:
        return weights_digest(source)


SIZES = ("hidden_size", "vocab_size", "num_hidden_layers", "head_dim", "intermediate_size")
OTHERS = ("attn", "hidden_act", "num_heads", "norm_first", "norm_bias", "norm_eps")
NULL = dict.fromkeys((*SIZES, *OTHERS, "tie_word_embeddings", "v_low_rank_dim"))


def write_spelling(folder, tensors, config, kind):
    new, old = spellings.hf(tensors), spellings.hf(tensors, fused=True)
    match kind:
        case "new":
            return spellings.write_hf(folder, new, config)
        case "old, fused":
            return spellings.write_hf(folder, old, config | {"model_type": "rwkv7_fla"})
        case "reversed":
            return spellings.write_hf(folder, dict(reversed(old.items())), config)
        case "null fields":
            return spellings.write_hf(folder, new, config | NULL)
        case "empty config":
            return spellings.write_hf(folder, new, {})
        case "no config":
            return spellings.write_hf(folder, new, None) / "model.safetensors"
        case "sharded":
            spellings.write_hf(folder, {}, config)
            (folder / "model.safetensors").unlink()
            return checkpoint_files.write_sharded(folder, old, 3).parent
        case "pickled":
            folder.mkdir()
            return pth_files.write_checkpoint(folder / "pytorch_model.bin", new)
    raise AssertionError(kind)


KINDS = (
    *("new", "old, fused", "reversed", "null fields"),
    *("empty config", "no config", "sharded", "pickled"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_is_the_same_checkpoint(tmp_path, tensors, original, config, kind):
    path = write_spelling(tmp_path / "hf", tensors, config, kind)
    assert read_all(path) == spellings.canonical(tensors)
    assert digest(path) == digest(original)


@pytest.mark.parametrize("kind", ["new", "old, fused", "sharded"])
def test_every_spelling_gives_the_same_bits(tmp_path, tensors, original, config, kind):
    path = write_spelling(tmp_path / "hf", tensors, config, kind)
    assert engines.differing(bits(path, PROMPT), bits(original, PROMPT)) == []


def test_a_real_model_gives_the_same_bits_in_both_spellings(fixtures, tmp_path):
    folder = fixtures / "hf" / "tiny-rwkv7-834K-hf"
    original = fixtures / "rwkv7_tiny" / "tiny-rwkv7-834K-bf16.pth"
    assert digest(folder) == digest(original)
    assert engines.differing(bits(folder, PROMPT), bits(original, PROMPT)) == []
    for name in ("config.json", "config.fla-style.json"):
        shutil.copy(folder / name, tmp_path / "config.json")
        shutil.copy(folder / "model.safetensors", tmp_path / "model.safetensors")
        assert digest(tmp_path) == digest(original)


def test_the_origins_say_where_each_tensor_lies(tmp_path, tensors, config):
    with open_checkpoint(write_spelling(tmp_path / "hf", tensors, config, "sharded")) as source:
        assert source.kind == "fla sharded safetensors"
        origins = {t.name: o for t, o in zip(source.tensors, source.origins, strict=True)}
    shard = r" in model-0000[123]-of-00003\.safetensors"
    for name, origin in {
        "emb.weight": f"model.embeddings.weight{shard}",
        "blocks.1.att.w1": f"model.layers.1.attn.w_lora.lora.0.weight{shard}, transposed",
        "blocks.2.att.x_a": f"model.layers.2.attn.x_x{shard}, row 4",
    }.items():
        assert re.fullmatch(origin, origins[name]), origins[name]


# ---------------------------------------------------------------- what only config.json says


def tied(tensors):
    """The checkpoint with its embedding as its head, as BlinkDL and as fla spell it."""
    both = tensors | {"head.weight": tensors["emb.weight"]}
    hf = spellings.hf(both)
    del hf["lm_head.weight"]
    return both, hf


def test_a_tied_head_is_the_embedding(tmp_path, tensors, config):
    both, hf = tied(tensors)
    folder = spellings.write_hf(tmp_path, hf, config | {"tie_word_embeddings": True})
    assert read_all(folder) == spellings.canonical(both)
    assert load_model(folder).model.info()["n_vocab"] == config["vocab_size"]


@pytest.mark.parametrize("tie", [False, None])
def test_a_missing_head_is_not_taken_to_be_tied(tmp_path, tensors, config, tie):
    _, hf = tied(tensors)
    folder = spellings.write_hf(tmp_path, hf, config | {"tie_word_embeddings": tie})
    with pytest.raises(FormatError, match=r"head\.weight is missing"):
        load_model(folder)


def test_a_tied_head_beside_another_one_is_refused(tmp_path, tensors, config):
    config["tie_word_embeddings"] = True
    folder = spellings.write_hf(tmp_path, spellings.hf(tensors), config)
    with pytest.raises(FormatError, match=r"tie_word_embeddings true, but there is a lm_head"):
        load_model(folder)


def is_layer_norm_bias(name):
    return name.endswith((".ln0.bias", ".ln1.bias", ".ln2.bias")) or name == "ln_out.bias"


def test_norms_without_bias_have_zeros(tmp_path, tensors, config):
    zeros = {
        name: (dtype, shape, bytes(len(data)) if is_layer_norm_bias(name) else data)
        for name, (dtype, shape, data) in tensors.items()
    }
    bare = {name: raw for name, raw in tensors.items() if not is_layer_norm_bias(name)}
    folder = spellings.write_hf(tmp_path, spellings.hf(bare), config | {"norm_bias": False})
    assert read_all(folder) == spellings.canonical(zeros)
    with open_checkpoint(folder) as source:
        assert source.origins.count("zeros, which the file leaves out") == 8
    spellings.write_hf(tmp_path, spellings.hf(bare), config)
    with pytest.raises(FormatError, match=r"bias is missing"):
        load_model(folder)


def test_another_config_of_the_same_files_is_another_checkpoint(tmp_path, tensors, config):
    _, hf = tied(tensors)
    folder = spellings.write_hf(tmp_path, hf, config | {"tie_word_embeddings": True})
    with_head = digest(folder)
    with open_checkpoint(folder) as source:
        assert source.files == [folder / "model.safetensors", folder / "config.json"]
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(FileError, match="changed"):
            source.check_unchanged()
    assert digest(folder) != with_head
    with pytest.raises(FileError, match="is the checkpoint itself"):
        convert_checkpoint(folder, folder / "config.json", overwrite=True)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "eps", ["1e-6", "1e-4", "6.4e-4", "1.0e-5001", "1e999", "NaN", "-1e-5", "1.00001e-5"]
)
def test_another_epsilon_than_rwkv_7_has_is_refused(tmp_path, tensors, config, eps):
    text = json.dumps(config).replace("1e-05", eps).encode()
    assert eps.encode() in text
    folder = spellings.write_hf(tmp_path, spellings.hf(tensors), text)
    with pytest.raises(UnsupportedError, match=r"norm_eps .* epsilon .* 1e-05 and 0\.00064"):
        load_model(folder)


def with_head_size(tensors, size):
    n_heads, old = tensors["blocks.0.att.r_k"][1]
    shape = (n_heads * old // size, size)
    return {n: (t, shape if n.endswith(".r_k") else s, d) for n, (t, s, d) in tensors.items()}


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("has_config", [True, False])
def test_the_group_norm_that_fla_gives_other_head_sizes_is_refused(
    tmp_path, tensors, size, has_config
):
    respelt = with_head_size(tensors, size)
    config = spellings.hf_config(respelt) if has_config else None
    folder = spellings.write_hf(tmp_path / "hf", spellings.hf(respelt), config)
    with pytest.raises(UnsupportedError, match=f"heads of {size} means .* group norm"):
        load_model(folder)
    checkpoint_files.write_safetensors(tmp_path / "blinkdl", respelt)
    assert load_model(tmp_path / "blinkdl").model.info()["head_size"] == size


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [1, 10**400, "64", [], True])
def test_a_config_that_does_not_fit_the_shapes_is_refused(tmp_path, tensors, config, key, value):
    folder = spellings.write_hf(tmp_path, spellings.hf(tensors), config | {key: value})
    with pytest.raises(FormatError, match=rf"config\.json says {key}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"attn": {"layers": [1]}}, UnsupportedError, "attention layers"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act gelu"),
        ({"hidden_act": [[]]}, UnsupportedError, "hidden_act a list"),
        ({"norm_first": False}, UnsupportedError, "norm_first"),
        ({"norm_first": 1}, FormatError, "norm_first is 1"),
        ({"norm_bias": "no"}, FormatError, "norm_bias is no"),
        ({"tie_word_embeddings": {}}, FormatError, "tie_word_embeddings is a dict"),
        ({"norm_eps": "1e-05"}, FormatError, "norm_eps is 1e-05, not a small number"),
        ({"norm_eps": 10**400}, FormatError, "norm_eps is 1000.*, not a small number"),
        ({"norm_eps": False}, FormatError, "norm_eps is False"),
    ],
)
def test_a_config_that_asks_for_another_model_is_refused(
    tmp_path, tensors, config, change, error, match
):
    folder = spellings.write_hf(tmp_path, spellings.hf(tensors), config | change)
    with pytest.raises(error, match=match):
        load_model(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\xff\xfe{}",
        b'{"norm_eps": 1e-5, "norm_eps": 1e-5}',
        b'{"a": ' + b"[" * 100_000,
        b'{"a": ' + b"9" * 100_000 + b"}",
        b'{"a": "' + b"x" * (4 << 20) + b'"}',
    ],
    ids=range(10),
)
def test_a_damaged_config_is_refused(tmp_path, tensors, text):
    folder = spellings.write_hf(tmp_path, spellings.hf(tensors), text)
    with pytest.raises(FormatError, match=r"config\.json"):
        load_model(folder)


def test_a_config_that_is_no_file_is_refused(tmp_path, tensors):
    folder = spellings.write_hf(tmp_path, spellings.hf(tensors), None)
    os.mkfifo(folder / "config.json")
    with pytest.raises(FormatError, match="not a regular file"):
        load_model(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("missing")
    with pytest.raises(FileError, match=r"config\.json"):
        load_model(folder)


def rename(name, other):
    return lambda hf: hf.update({other: hf.pop(name)})


def reshape(name, shape):
    return lambda hf: hf.update({name: (hf[name][0], shape, hf[name][2])})


FUSED = "model.layers.1.attn.x_x"


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda hf: hf.pop("model.layers.1.attn.k_k"), r"blocks\.1\.att\.k_k is missing"),
        (lambda hf: hf.pop("model.layers.0.pre_norm.bias"), r"ln0\.bias is missing"),
        (lambda hf: hf.update(extra=("U8", (0,), b"")), "extra is not part"),
        (rename(FUSED, "model.layers.01.attn.x_x"), r"layers\.01\.attn\.x_x is not part"),
        (rename(FUSED, "model.layers.١.attn.x_x"), "is not part"),
        (rename(FUSED, "model.layers.-1.attn.x_x"), "is not part"),
        (rename(FUSED, "model.layers.9999999.attn.x_x"), "is not part"),
        (rename(FUSED, "model.layers.1.attn.x_x/../../x"), "is not part"),
        (rename(FUSED, "model.layers.1.attn.x_x\n"), r"x_x\?|newline|control"),
        (rename(FUSED, "model.layers.7.attn.x_x"), "num_hidden_layers 3"),
        (reshape(FUSED, (3, 256)), r"\[3, 256\]; \[6, n_embd\] is expected"),
        (reshape(FUSED, (768,)), r"\[6, n_embd\] is expected"),
        (reshape(FUSED, (12, 64)), r"\[6, n_embd\] is expected"),
        (
            lambda hf: hf.update({"model.layers.1.attn.x_r": ("BF16", (128,), bytes(256))}),
            r"makes blocks\.1\.att\.x_r, which another tensor makes too",
        ),
        (reshape("model.layers.1.attn.w_lora.lora.0.weight", (128, 32)), r"\.w1|w1 \["),
        (reshape("model.layers.1.attn.w_lora.lora.0.weight", (32 * 128,)), r"\.w1"),
        (reshape("model.layers.0.attn.r_k", (128,)), "head_dim 64"),
        (reshape("model.embeddings.weight", (512 * 128,)), r"emb\.weight"),
        (reshape("model.layers.0.ffn.key.weight", (128, 512)), "intermediate_size 512"),
    ],
)
def test_tensors_that_are_no_rwkv_7_are_refused(tmp_path, tensors, config, edit, match):
    hf = spellings.hf(tensors, fused=True)
    edit(hf)
    folder = spellings.write_hf(tmp_path, hf, config)
    with pytest.raises(FormatError, match=match), open_checkpoint(folder) as source:
        new_builder(source, "auto")
