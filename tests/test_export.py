"""Nobody is locked in: a checkpoint of any kind goes to BlinkDL's and fla's, byte for byte."""

import hashlib
import json
import os
import re

import checkpoint_files
import numpy as np
import pth_files
import pytest
import safetensors
import spellings
import typer
from conftest import DATA
from opened import read_all
from safetensors.numpy import load_file
from typer.testing import CliRunner

import wkvm
from wkvm.cli.convert import convert as convert_command
from wkvm.cli.info import info as info_command
from wkvm.errors import FileError, FormatError, InvalidArgumentError, UnsupportedError
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.export import export_checkpoint
from wkvm.formats.fingerprint import weights_digest
from wkvm.formats.load import load_model
from wkvm.formats.open import open_checkpoint


@pytest.fixture(scope="module")
def tensors(checkpoint):
    """The synthetic checkpoint, less what fla has no place for."""
    return spellings.without_first_v(checkpoint_files.read(checkpoint("r7-s128")))


@pytest.fixture(scope="module")
def spelt(tensors, tmp_path_factory):
    """The checkpoint in every spelling that keeps its type."""
    folder = tmp_path_factory.mktemp("spelt")
    checkpoint_files.write_safetensors(folder / "m.safetensors", tensors)
    convert_checkpoint(folder / "m.safetensors", folder / "packed.safetensors")
    config = spellings.hf_config(tensors)
    return {
        "safetensors": folder / "m.safetensors",
        "pth": pth_files.write_checkpoint(folder / "m.pth", tensors),
        "sharded": checkpoint_files.write_sharded(folder / "sharded", tensors, 3),
        "fla": spellings.write_hf(folder / "fla", spellings.hf(tensors), config),
        "fused": spellings.write_hf(folder / "fused", spellings.hf(tensors, fused=True), config),
        "packed": folder / "packed.safetensors",
    }


KINDS = ("safetensors", "pth", "sharded", "fla", "fused", "packed")


def exported(source, target, spelling, **options):
    export_checkpoint(source, target, spelling, **options)
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_goes_back_to_blinkdl_s_byte_for_byte(spelt, tensors, tmp_path, kind):
    path = exported(spelt[kind], tmp_path / "m.safetensors", "blinkdl")
    assert read_all(path) == spellings.canonical(tensors)
    with safetensors.safe_open(path, "numpy") as file:
        assert set(file.keys()) == set(tensors)
        assert file.metadata()["format"] == "pt"
    other = exported(spelt["pth"], tmp_path / "other", "blinkdl")
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_goes_to_fla_s_and_back(spelt, tensors, tmp_path, kind):
    folder = exported(spelt[kind], tmp_path / "fla", "fla")
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    assert read_all(folder) == spellings.canonical(tensors)
    raw = checkpoint_files.read_safetensors(folder / "model.safetensors")
    assert raw == spellings.hf(tensors)
    config = json.loads((folder / "config.json").read_text())
    assert spellings.hf_config(tensors).items() <= config.items()
    other = exported(spelt["pth"], tmp_path / "other", "fla")
    for name in os.listdir(folder):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


def test_rwkv_x_goes_back_to_its_own_spelling_and_not_to_fla(checkpoint, tmp_path):
    path = checkpoint("x128-6p2")
    tensors = checkpoint_files.read(path)
    assert read_all(exported(path, tmp_path / "m", "blinkdl")) == spellings.canonical(tensors)
    convert_checkpoint(path, tmp_path / "packed")
    back = read_all(exported(tmp_path / "packed", tmp_path / "back", "blinkdl"))
    first_v = {f"rwkv.{name}" for name in spellings.FIRST_V}
    assert back == {n: raw for n, raw in spellings.canonical(tensors).items() if n not in first_v}
    with pytest.raises(UnsupportedError, match="RWKV-X"):
        export_checkpoint(path, tmp_path / "fla", "fla")


def test_block_0_s_useless_tensors_go_to_blinkdl_s_and_not_to_fla_s(checkpoint, tensors, tmp_path):
    path = checkpoint("r7-s128")
    whole = spellings.canonical(checkpoint_files.read(path))
    assert whole.keys() > tensors.keys()
    assert read_all(exported(path, tmp_path / "m", "blinkdl")) == whole
    assert read_all(exported(path, tmp_path / "fla", "fla")) == spellings.canonical(tensors)


# ---------------------------------------------------------------- unpacking


def odd(tensors):
    """The checkpoint with ranks and a vocabulary that no panel divides."""

    def cut(name, raw):
        dtype, shape, data = raw
        if name in ("emb.weight", "head.weight"):
            return dtype, (501, shape[1]), data[: 501 * shape[1] * 2]
        if name.endswith(".g1"):
            return dtype, (128, 5), data[: 128 * 5 * 2]
        return (dtype, (5, 128), data[: 5 * 128 * 2]) if name.endswith(".g2") else raw

    return {name: cut(name, raw) for name, raw in tensors.items()}


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_unpacking_gives_back_the_tensors_that_were_packed(tensors, tmp_path, dtype):
    original = spellings.all_as_type(spellings.rounded(odd(tensors)), dtype)
    checkpoint_files.write_safetensors(tmp_path / "m", original)
    convert_checkpoint(tmp_path / "m", tmp_path / "packed")
    back = exported(tmp_path / "packed", tmp_path / "back", "blinkdl")
    assert read_all(back) == spellings.canonical(original)
    with open_checkpoint(back) as source, open_checkpoint(tmp_path / "packed") as packed:
        assert weights_digest(source) == weights_digest(packed)  # the one it recorded


def test_vectors_that_do_not_fit_the_matrices_type_stay_float32(tensors, tmp_path):
    wide = ("F32", (128,), (np.arange(128) + np.float32(1 / 3)).astype("<f4").tobytes())
    original = tensors | {"ln_out.weight": wide}
    checkpoint_files.write_safetensors(tmp_path / "m", original)
    convert_checkpoint(tmp_path / "m", tmp_path / "packed")
    for spelling in ("blinkdl", "fla"):
        back = read_all(exported(tmp_path / "packed", tmp_path / spelling, spelling))
        assert back["ln_out.weight"] == ("f32", *wide[1:])
        for name, (dtype, shape, data) in original.items():
            values = checkpoint_files.to_float64(dtype, shape, data)
            found = back[name]
            assert (checkpoint_files.to_float64(found[0].upper(), *found[1:]) == values).all()
    assert json.loads((tmp_path / "fla" / "config.json").read_text())["torch_dtype"] == "float32"


def test_int8_is_not_unpacked(spelt, tmp_path):
    convert_checkpoint(spelt["pth"], tmp_path / "int8", dtype="int8")
    for spelling in ("blinkdl", "fla"):
        with pytest.raises(UnsupportedError, match="rounded to int8"):
            export_checkpoint(tmp_path / "int8", tmp_path / "back", spelling)
    assert os.listdir(tmp_path) == ["int8"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("size", [32, 128])
def test_heads_for_which_fla_computes_something_else_are_refused(tensors, tmp_path, size):
    shape = (128 // size, size)
    other = {n: (t, shape if n.endswith(".r_k") else s, d) for n, (t, s, d) in tensors.items()}
    checkpoint_files.write_safetensors(tmp_path / "m", other)
    with pytest.raises(UnsupportedError, match=f"heads of {size}, .* another model"):
        export_checkpoint(tmp_path / "m", tmp_path / "fla", "fla")
    assert read_all(exported(tmp_path / "m", tmp_path / "n", "blinkdl")) == spellings.canonical(
        other
    )


def test_ranks_that_differ_are_refused_for_fla(tensors, tmp_path):
    other = dict(tensors)
    for name in ("blocks.1.att.g1", "blocks.1.att.g2"):
        other[name] = odd(tensors)[name]
    checkpoint_files.write_safetensors(tmp_path / "m", other)
    with pytest.raises(UnsupportedError, match=r"ranks of g1 and g2 differ .* 5 to 48"):
        export_checkpoint(tmp_path / "m", tmp_path / "fla", "fla")


def test_a_checkpoint_that_is_no_model_is_refused(tensors, tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "m", tensors | {"extra": ("F32", (1,), bytes(4))})
    for spelling in ("blinkdl", "fla"):
        with pytest.raises(FormatError, match="extra"):
            export_checkpoint(tmp_path / "m", tmp_path / "out", spelling)
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("spelling", ["blinkdl", "fla"])
def test_what_exists_is_replaced_only_on_demand(spelt, tmp_path, spelling):
    target = exported(spelt["pth"], tmp_path / "out", spelling)
    with pytest.raises(FileError, match="exists"):
        export_checkpoint(spelt["pth"], target, spelling)
    export_checkpoint(spelt["fla"], target, spelling, overwrite=True)
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(FileError, match="is the checkpoint itself"):
        export_checkpoint(target, target, spelling, overwrite=True)
    with pytest.raises(InvalidArgumentError, match="zero byte"):
        export_checkpoint(spelt["pth"], "a\0b", spelling)


def test_a_folder_that_holds_anything_else_is_not_replaced(spelt, tmp_path):
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "thesis.txt").write_text("x")
    with pytest.raises(FileError, match=r"holds thesis\.txt"):
        export_checkpoint(spelt["pth"], tmp_path / "fla", "fla", overwrite=True)
    assert os.listdir(tmp_path / "fla") == ["thesis.txt"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="cannot replace"):
        export_checkpoint(spelt["pth"], tmp_path / "file", "fla", overwrite=True)
    with pytest.raises(FileError, match="cannot write"):
        export_checkpoint(spelt["pth"], tmp_path / "none" / "fla", "fla")
    assert sorted(os.listdir(tmp_path)) == ["file", "fla"]


def test_an_interrupted_export_leaves_nothing_behind(spelt, tmp_path):
    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    for spelling in ("blinkdl", "fla"):
        with pytest.raises(KeyboardInterrupt):
            export_checkpoint(spelt["pth"], tmp_path / "out", spelling, progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_recommendations_travel(spelt, tensors, tmp_path):
    metadata = {"wkvm.moba_topk": "5", "wkvm.vocab": "1 'a' 1\n", "other": "x"}
    checkpoint_files.write_safetensors(tmp_path / "m", tensors, metadata)
    for spelling in ("blinkdl", "fla"):
        path = exported(tmp_path / "m", tmp_path / spelling, spelling, policy={"moba_topk": 4})
        with open_checkpoint(path) as source:
            assert source.metadata == {
                "format": "pt",
                "wkvm.moba_topk": "4",
                "wkvm.spelling": spelling,
                "wkvm.vocab": "1 'a' 1\n",
            }


# ---------------------------------------------------------------- the commands

app = typer.Typer()
app.command("convert")(convert_command)
app.command("info")(info_command)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("spelling", ["blinkdl", "fla"])
def test_the_command_exports_what_the_function_does(spelt, tmp_path, spelling):
    source, target = spelt["packed"], tmp_path / "out"
    assert run("convert", source, target, "--to", spelling).exit_code == 0
    assert read_all(target) == read_all(exported(source, tmp_path / "same", spelling))
    assert run("convert", source, target, "--to", spelling).exit_code != 0
    assert run("convert", source, target, "--to", spelling, "--force").exit_code == 0
    assert run("convert", source, target, "--to", "gguf").exit_code == 2
    assert run("convert", source, target, "--to", spelling, "--dtype", "fp16").exit_code == 2


def test_info_says_where_each_tensor_lies(spelt, tensors):
    facts = json.loads(run("info", spelt["fused"], "--tensors", "--json").stdout)
    assert [tensor["name"] for tensor in facts["tensors"]] == sorted(tensors)
    assert facts["tensors"][0] == {
        "name": "blocks.0.att.a0",
        "dtype": "bf16",
        "shape": [1, 1, 128],
        "origin": "model.layers.0.attn.a_lora.lora.2.bias",
    }
    lines = run("info", spelt["fused"], "--tensors").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("blocks.1.att.x_v ")]
    assert line.split("  ")[-1] == "bf16 [1, 1, 128] <- model.layers.1.attn.x_x, row 3"
    without = run("info", spelt["fused"])
    assert "blocks.1" not in without.stdout
    assert "tensors" not in json.loads(run("info", spelt["fused"], "--json").stdout)


@pytest.mark.parametrize(
    ("kind", "origin"),
    [
        ("safetensors", "emb.weight"),
        ("pth", "emb.weight"),
        ("packed", "emb.weight"),
        ("sharded", "emb.weight in model-0000[1-3]-of-00003.safetensors"),
    ],
)
def test_every_kind_of_file_says_where_its_tensors_lie(spelt, kind, origin):
    with open_checkpoint(spelt[kind]) as source:
        origins = {t.name: o for t, o in zip(source.tensors, source.origins, strict=True)}
    assert re.fullmatch(origin, origins["emb.weight"])


# ---------------------------------------------------------------- against another reader

#: What rwkv7-hf computed from the exported folder; see tests/data/README.md.
GOLDEN = DATA / "hf" / "r7-s128-fla.safetensors"
ATOL = 2e-4  # between two float32 implementations with other orders of summation


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    return exported(checkpoint("r7-s128"), tmp_path_factory.mktemp("golden") / "fla", "fla")


def test_the_exported_folder_means_the_same_to_rwkv7_hf(folder, checkpoint):
    golden = load_file(GOLDEN)
    with safetensors.safe_open(GOLDEN, "numpy") as file:
        digests = file.metadata()
    for name in ("config.json", "model.safetensors"):  # so this very folder was what it loaded
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digests[name], name
    for path in (folder, checkpoint("r7-s128")):
        session = wkvm.load(path, threads=1).session()
        logits = session.forward(golden["tokens"].tolist(), logits="all")[golden["rows"]]
        assert np.abs(logits - golden["logits"]).max() <= ATOL


def test_rwkv7_hf_loads_the_exported_folder_where_it_is_installed(folder):
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("rwkv7_hf.modeling_rwkv7")
    golden = load_file(GOLDEN)
    model, found = modeling.RWKV7ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(found.values())
    with torch.no_grad():
        logits = model(torch.from_numpy(golden["tokens"])[None].long()).logits[0].numpy()
    ours = wkvm.load(folder).session().forward(golden["tokens"].tolist(), logits="all")
    assert np.abs(logits - ours).max() <= ATOL


def test_loading_an_exported_folder_packs_what_the_original_packs(folder, checkpoint):
    packed = [
        {name: data.tobytes() for name, _, _, data in load_model(path).model.tensors()}
        for path in (folder, checkpoint("r7-s128"))
    ]
    assert packed[0] == packed[1]
