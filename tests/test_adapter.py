"""A merged adapter is the model that merging beforehand would have made, bit for bit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint_files
import engines
import numpy as np
import pth_files
import pytest
import vocabularies
from conftest import DATA
from safetensors.numpy import load_file

import wkvm
from wkvm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    StateMismatchError,
    UnsupportedError,
)
from wkvm.formats import merged
from wkvm.formats.convert import convert_checkpoint
from wkvm.formats.export import export_checkpoint
from wkvm.formats.open import open_model

TOKENS = engines.tokens(30, seed=11)
RANK = 4
#: Matrices that the adapters here change, with their sides [out, in].
SIDES = {
    "blocks.0.att.receptance": (128, 128),
    "blocks.1.att.key": (128, 128),
    "blocks.2.att.output": (128, 128),
    "blocks.1.ffn.key": (512, 128),
    "blocks.2.ffn.value": (128, 512),
    "head": (512, 128),
}
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


def random_pairs(seed: int, sides=SIDES, rank=RANK) -> Pairs:
    """Module -> A [r, in], B [out, r], of full float32 precision."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (0.1 * rng.standard_normal(shape)).astype("<f4")

    return {
        module: (normal(rank, n_in), normal(n_out, rank)) for module, (n_out, n_in) in sides.items()
    }


# ---- merging beforehand, written apart from the code under test


def rounded(values: np.ndarray, dtype: str) -> bytes:
    """Float32 values in a type as it lies on disk, to the nearest, ties to even."""
    if dtype != "BF16":
        return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
    below = np.ascontiguousarray(values).view("<u4") & 0xFFFF0000  # towards zero
    above = below + 0x10000
    distances = [
        np.abs(values.astype(np.float64) - bound.view("<f4").astype(np.float64))
        for bound in (below, above)
    ]
    is_odd = (below >> 16) & 1 == 1
    up = (distances[1] < distances[0]) | ((distances[1] == distances[0]) & is_odd)
    return (np.where(up, above, below) >> 16).astype("<u2").tobytes()


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """B A in float32; a running sum is sequential, and every term and sum rounded once."""
    terms = b.T[:, :, None] * a[:, None, :]  # [r, out, in]
    assert terms.dtype == np.float32
    return np.cumsum(terms, axis=0, dtype=np.float32)[-1]


def merge(raw, pairs: Pairs, scale: float, init: Pairs | None = None):
    """A checkpoint as it lies on disk, with the pairs merged into it."""
    result = dict(raw)
    for module, (a, b) in pairs.items():
        dtype, shape, data = raw[f"{module}.weight"]
        stored = checkpoint_files.to_float64(dtype, shape, data).astype(np.float32)
        change = np.float32(scale) * product(a, b)
        if init is not None:
            change = change - np.float32(scale) * product(*init[module])
        result[f"{module}.weight"] = (dtype, shape, rounded(stored + change, dtype))
    return result


# ---- adapters as their authors' programs write them


def float32(arrays):
    return {name: ("F32", a.shape, np.ascontiguousarray(a).tobytes()) for name, a in arrays.items()}


def write_pth(path: Path, pairs: Pairs, init="", prefix="", extra=None) -> Path:
    """As RWKV-PEFT did."""
    arrays = dict(extra or {})
    for module, (a, b) in pairs.items():
        arrays |= {f"{prefix}{module}.{init}lora_A": a, f"{prefix}{module}.{init}lora_B": b}
    return pth_files.write_checkpoint(path, float32(arrays))


def write_peft(folder: Path, pairs: Pairs, prefix="", extra=None, infix="", **config) -> Path:
    """As PEFT does."""
    folder.mkdir()
    arrays = dict(extra or {})
    for module, (a, b) in pairs.items():
        name = f"base_model.model.{prefix}{module}"
        arrays |= {f"{name}.lora_A{infix}.weight": a, f"{name}.lora_B{infix}.weight": b}
    checkpoint_files.write_safetensors(
        folder / "adapter_model.safetensors", float32(arrays), {"format": "pt"}
    )
    content = json.loads((DATA / "peft" / "lora" / "adapter_config.json").read_text())
    content |= {"r": RANK, "lora_alpha": 6} | config
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


#: Spelling -> (the adapter, in a folder; its scale; whether what PiSSA began with comes off).
SPELLINGS = {
    "pth LoRA": (
        lambda d, pairs, init: wkvm.Adapter(write_pth(d / "rwkv-0.pth", pairs), alpha=12),
        12 / RANK,
    ),
    "pth PiSSA": (
        lambda d, pairs, init: wkvm.Adapter(
            write_pth(d / "rwkv-0.pth", pairs),
            init=write_pth(d / "init_pissa.pth", init, "init_", "model."),
        ),
        1.0,
    ),
    "PEFT LoRA": (lambda d, pairs, init: wkvm.Adapter(write_peft(d / "peft", pairs)), 6 / RANK),
    "PEFT LoRA of a wrapped model": (
        lambda d, pairs, init: wkvm.Adapter(
            write_peft(d / "peft", pairs, "model.", infix=".default", lora_alpha=5)
        ),
        5 / RANK,
    ),
    "PEFT rsLoRA": (
        lambda d, pairs, init: wkvm.Adapter(write_peft(d / "peft", pairs, use_rslora=True)),
        6 / RANK**0.5,
    ),
    "PEFT PiSSA": (
        lambda d, pairs, init: wkvm.Adapter(
            write_peft(d / "peft", pairs, init_lora_weights="pissa_niter_4"),
            init=write_peft(d / "pissa_init", init),
        ),
        6 / RANK,
    ),
}


@pytest.fixture(scope="module")
def raw(checkpoint):
    return checkpoint_files.read(checkpoint("r7-s128"))


def of_type(raw, dtype):
    """The same checkpoint in another type, its values nearly the same."""
    if dtype == "BF16":
        return raw
    return {
        name: (dtype, shape, rounded(checkpoint_files.to_float64(*entry).astype("<f4"), dtype))
        for name, entry in raw.items()
        for _, shape, _ in [entry]
    }


def logits(model) -> bytes:
    return model.session().forward(TOKENS, logits="all").tobytes()


def files_of(source):
    """Name -> type, shape, bytes of every tensor that a source reads."""
    return {
        info.name: (info.dtype.upper(), info.shape, source.read(i).tobytes())
        for i, info in enumerate(source.tensors)
    }


# ---- the promise


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_merging_at_load_equals_merging_beforehand(raw, tmp_path, spelling, dtype):
    base, offline = tmp_path / "base.safetensors", tmp_path / "offline.safetensors"
    stored = of_type(raw, dtype)
    checkpoint_files.write_safetensors(base, stored)
    make, scale = SPELLINGS[spelling]
    pairs, init = random_pairs(1), random_pairs(2)
    adapter = make(tmp_path, pairs, init)
    expected = merge(stored, pairs, scale, init if "PiSSA" in spelling else None)
    checkpoint_files.write_safetensors(offline, expected)

    with open_model(base, adapter) as source:
        actual = files_of(source)
        changed = {i.name for i, o in zip(source.tensors, source.origins, strict=True) if "+" in o}
    assert actual.keys() == expected.keys()
    assert [name for name in expected if actual[name] != expected[name]] == []
    assert changed == {f"{module}.weight" for module in SIDES}
    assert all(actual[name] != stored[name] for name in changed)

    converted = tmp_path / "converted.safetensors"
    convert_checkpoint(base, converted, adapter=adapter)
    models = [wkvm.load(base, adapter=adapter), wkvm.load(offline), wkvm.load(converted)]
    assert len({logits(model) for model in models}) == 1
    assert len({model.fingerprint for model in models}) == 1
    plain = wkvm.load(base)
    assert plain.fingerprint != models[0].fingerprint
    assert logits(plain) != logits(models[0])


def test_int8_is_the_int8_of_the_merged_matrix(raw, checkpoint, tmp_path):
    pairs = random_pairs(3)
    adapter = wkvm.Adapter(write_pth(tmp_path / "a.pth", pairs), alpha=8)
    checkpoint_files.write_safetensors(tmp_path / "m.safetensors", merge(raw, pairs, 8 / RANK))
    model = wkvm.load(checkpoint("r7-s128"), dtype="int8", adapter=adapter)
    assert logits(model) == logits(wkvm.load(tmp_path / "m.safetensors", dtype="int8"))


def test_rwkvx_takes_one_too(checkpoint, tmp_path):
    stored = checkpoint_files.read(checkpoint("x128-6p2"))
    sides = {"rwkv.blocks.4.att.key": (128, 128), "moba.1.att.value": (128, 128)}
    pairs = random_pairs(4, sides)
    adapter = write_peft(tmp_path / "peft", pairs)
    checkpoint_files.write_safetensors(tmp_path / "m.safetensors", merge(stored, pairs, 6 / RANK))
    assert logits(wkvm.load(checkpoint("x128-6p2"), adapter=adapter)) == logits(
        wkvm.load(tmp_path / "m.safetensors")
    )


def test_modules_may_have_fla_s_names(raw, checkpoint, tmp_path):
    """And may be the low-rank matrices of the model itself, which fla has transposed."""
    names = {
        "model.layers.1.attn.k_proj": ("blocks.1.att.key.weight", (128, 128)),
        "model.layers.2.ffn.value": ("blocks.2.ffn.value.weight", (128, 512)),
        "lm_head": ("head.weight", (512, 128)),
        "model.layers.1.attn.w_lora.lora.0": ("blocks.1.att.w1", (32, 128)),
        "model.layers.1.attn.w_lora.lora.2": ("blocks.1.att.w2", (128, 32)),
    }
    pairs = random_pairs(5, {module: sides for module, (_, sides) in names.items()})
    adapter = write_peft(tmp_path / "peft", pairs)
    expected = dict(raw)
    for module, (name, _) in names.items():
        dtype, shape, data = raw[name]
        stored = checkpoint_files.to_float64(dtype, shape, data).astype(np.float32)
        change = np.float32(6 / RANK) * product(*pairs[module])
        is_low_rank = name.endswith(("w1", "w2"))
        new = (stored.T + change).T if is_low_rank else stored + change
        expected[name] = (dtype, shape, rounded(np.ascontiguousarray(new), dtype))
    with open_model(checkpoint("r7-s128"), wkvm.Adapter(adapter)) as source:
        actual = files_of(source)
    assert [name for name in expected if actual[name] != expected[name]] == []


def test_every_spelling_of_the_model_gives_the_same_merged_one(raw, checkpoint, tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "m.safetensors", raw)
    export_checkpoint(checkpoint("r7-s128"), tmp_path / "fla", "fla")
    bases = [
        checkpoint("r7-s128"),
        tmp_path / "m.safetensors",
        checkpoint_files.write_sharded(tmp_path / "shards", raw, 3),
        tmp_path / "fla",
    ]
    adapter = write_peft(tmp_path / "peft", random_pairs(16))
    models = [wkvm.load(base, adapter=adapter) for base in bases]
    assert len({logits(model) for model in models}) == 1
    assert len({model.fingerprint for model in models[:3]}) == 1  # fla's has no v0 of block 0


def test_whole_tensors_replace_the_model_s(raw, checkpoint, tmp_path):
    """RWKV-PEFT trains the norms along by default; PEFT saves modules_to_save."""
    rng = np.random.default_rng(6)
    whole = {
        "blocks.1.ln1.weight": rng.standard_normal(128).astype("<f4"),
        "blocks.0.att.ln_x.bias": rng.standard_normal(128).astype("<f4"),
        "blocks.2.att.x_r": rng.standard_normal(128).astype("<f4"),  # stored [1, 1, 128]
        "emb.weight": rng.standard_normal((512, 128)).astype("<f4"),
    }
    pairs = random_pairs(7)
    expected = merge(raw, pairs, 6 / RANK)
    for name, values in whole.items():
        expected[name] = (raw[name][0], raw[name][1], rounded(values, raw[name][0]))
    peft = {f"base_model.model.{name}": values for name, values in whole.items()}
    adapters = [
        wkvm.Adapter(write_pth(tmp_path / "a.pth", pairs, extra=whole), alpha=6),
        wkvm.Adapter(write_peft(tmp_path / "peft", pairs, extra=peft, modules_to_save=["emb"])),
    ]
    for adapter in adapters:
        with open_model(checkpoint("r7-s128"), adapter) as source:
            actual = files_of(source)
        assert [name for name in expected if actual[name] != expected[name]] == []


def test_a_merged_model_can_be_exported(checkpoint, tmp_path):
    adapter = wkvm.Adapter(write_peft(tmp_path / "peft", random_pairs(8)))
    export_checkpoint(checkpoint("r7-s128"), tmp_path / "m.safetensors", "blinkdl", adapter=adapter)
    assert logits(wkvm.load(tmp_path / "m.safetensors")) == logits(
        wkvm.load(checkpoint("r7-s128"), adapter=adapter)
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("stretch", [1, 4000, 1 << 30])
def test_neither_threads_nor_stretches_change_the_bits(
    checkpoint, tmp_path, monkeypatch, threads, stretch
):
    adapter = wkvm.Adapter(write_peft(tmp_path / "peft", random_pairs(9)))
    with open_model(checkpoint("r7-s128"), adapter) as source:
        expected = files_of(source)
    monkeypatch.setattr(merged, "default_threads", lambda: threads)
    monkeypatch.setattr(merged, "_STRETCH", stretch)
    with open_model(checkpoint("r7-s128"), adapter) as source:
        assert files_of(source) == expected


@pytest.mark.parametrize("name", ["lora", "pissa", "pissa_converted"])
def test_peft_s_own_files_give_peft_s_own_merge(checkpoint, tmp_path, name):
    """tests/data/README.md says how PEFT made them, from r7-s128 in float32."""
    folder = DATA / "peft"
    base = tmp_path / "base.safetensors"
    checkpoint_files.write_edited(checkpoint("r7-s128"), base, lambda arrays: None)
    init = folder / "pissa_init" if name == "pissa" else None
    golden = {
        key.split("/")[1]: values
        for key, values in load_file(folder / "merged.safetensors").items()
        if key.split("/")[0] == name.split("_")[0]
    }
    with open_model(base, wkvm.Adapter(folder / name, init=init)) as source:
        actual = files_of(source)
    stored = checkpoint_files.read(base)
    assert {n for n in stored if actual[n] != stored[n]} == golden.keys()
    for key, expected in golden.items():
        values = np.frombuffer(actual[key][2], "<f4")[::53]
        # Its sums are float32 in another order, and it rounds W - P0 before it adds P; the values
        # are below 1.
        assert np.abs(values - expected).max() <= 1e-6, key


# ---- identity


def test_each_alpha_is_another_model(checkpoint, tmp_path):
    path = write_pth(tmp_path / "a.pth", random_pairs(10))
    fingerprints = [
        wkvm.load(checkpoint("r7-s128"), adapter=wkvm.Adapter(path, alpha)).fingerprint
        for alpha in (4, 4.0, 8, 8.5, -4)
    ]
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 4


def test_a_state_belongs_to_the_merged_model(checkpoint, tmp_path):
    adapter = write_peft(tmp_path / "peft", random_pairs(12))
    plain = wkvm.load(checkpoint("r7-s128"))
    tuned = wkvm.load(checkpoint("r7-s128"), adapter=adapter)
    session = tuned.session()
    session.forward(TOKENS[:9])
    session.save(tmp_path / "state.safetensors")
    with pytest.raises(StateMismatchError, match="other weights"):
        plain.resume(tmp_path / "state.safetensors")
    again = wkvm.load(checkpoint("r7-s128"), adapter=adapter)
    resumed = again.resume(tmp_path / "state.safetensors")
    assert resumed.forward(TOKENS[9:]).tobytes() == session.forward(TOKENS[9:]).tobytes()


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_an_adapter_that_changes_after_the_load_is_noticed(checkpoint, tmp_path, file):
    adapter = write_peft(tmp_path / "peft", random_pairs(13))
    model = wkvm.load(checkpoint("r7-s128"), adapter=adapter)
    other = write_peft(tmp_path / "other", random_pairs(14), lora_alpha=7)
    shutil.copyfile(other / file, adapter / "new")
    (adapter / "new").replace(adapter / file)
    with pytest.raises(FileError, match="changed since it was loaded"):
        _ = model.fingerprint


# ---- what is refused


def refused(checkpoint, adapter, by, match):
    with pytest.raises(by, match=match) as info:
        wkvm.load(checkpoint("r7-s128"), adapter=adapter)
    assert "\n" not in str(info.value)


SETTINGS = {
    "peft_type": ("MISS", UnsupportedError, "of type MISS"),
    "use_dora": (True, UnsupportedError, "DoRA"),
    "use_qalora": (True, UnsupportedError, "QALoRA"),
    "rank_pattern": ({"key": 8}, UnsupportedError, "rank_pattern"),
    "alpha_pattern": ({"key": 8}, UnsupportedError, "alpha_pattern"),
    "fan_in_fan_out": (True, UnsupportedError, "fan_in_fan_out"),
    "layer_replication": ([[0, 2]], UnsupportedError, "layer_replication"),
    "lora_bias": (True, UnsupportedError, "lora_bias"),
    "bias": ("all", UnsupportedError, "bias all"),
    "target_parameters": (["w1"], UnsupportedError, "target_parameters"),
    "trainable_token_indices": ([1], UnsupportedError, "trainable_token_indices"),
    "alora_invocation_tokens": ([1], UnsupportedError, "aLoRA"),
    "kasa_config": ({"beta": 1}, UnsupportedError, "kasa_config a dict"),
    "invented_later": (True, UnsupportedError, "invented_later True"),
    "init_lora_weights": ("olora", UnsupportedError, "olora, which changes the model"),
    "r": (3, FormatError, "has rank 4, adapter_config.json says 3"),
    "lora_alpha": (None, FormatError, "lora_alpha is None"),
    "use_rslora": ("yes", FormatError, "use_rslora is yes"),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_that_changes_the_arithmetic_is_refused_by_name(checkpoint, tmp_path, key):
    value, error, match = SETTINGS[key]
    refused(checkpoint, write_peft(tmp_path / "a", random_pairs(0), **{key: value}), error, match)


@pytest.mark.parametrize("value", [0, -1, 1.0, "4", True, None, [4], 1 << 40])
def test_a_rank_that_is_none_is_refused(checkpoint, tmp_path, value):
    refused(checkpoint, write_peft(tmp_path / "a", random_pairs(0), r=value), FormatError, "r is")


@pytest.mark.parametrize("value", ["6", True, [6], 1e300, float("nan"), float("inf")])
def test_an_alpha_that_is_none_is_refused(checkpoint, tmp_path, value):
    folder = write_peft(tmp_path / "a", random_pairs(0), lora_alpha=value)
    refused(checkpoint, folder, FormatError, "lora_alpha is")
    path = write_pth(tmp_path / "a.pth", random_pairs(0))
    with pytest.raises(InvalidArgumentError, match="alpha is"):
        wkvm.Adapter(path, alpha=value)


KINDS = {
    "blocks.0.att.key.bone": "Bone",
    "blocks.0.att.key.disha": "Bone",
    "blocks.0.att.key.miss_block": "Bone",
    "blocks.0.att.key.lora_magnitude_vector": "DoRA",
    "emb.lora_embedding_A": "of the embedding",
    "blocks.0.att.key.lora_B.bias": "biases",
    "blocks.0.att.time_state": "tuned initial state",
}


@pytest.mark.parametrize("name", KINDS)
def test_another_kind_of_adapter_is_refused_by_name(checkpoint, tmp_path, name):
    path = write_pth(tmp_path / "a.pth", random_pairs(0), extra={name: np.zeros((2, 2), "<f4")})
    refused(checkpoint, wkvm.Adapter(path, alpha=4), UnsupportedError, KINDS[name])


def pair(n_out, n_in, rank=RANK):
    return np.zeros((rank, n_in), "<f4"), np.zeros((n_out, rank), "<f4")


MISFITS = {
    "a block too many": ({"blocks.3.att.key": pair(128, 128)}, "no place in the model"),
    "no such matrix": ({"blocks.0.att.gate": pair(128, 128)}, "no place in the model"),
    "no matrix": ({"blocks.0.ln1": pair(128, 128)}, "no place in the model"),
    "a wider model": ({"blocks.0.att.key": pair(256, 256)}, r"\[r, 128\] and \[128, r\]"),
    "swapped sides": ({"blocks.0.ffn.key": pair(128, 512)}, r"\[r, 128\] and \[512, r\]"),
    "two ranks": (
        {"blocks.0.att.key": (pair(128, 128, 4)[0], pair(128, 128, 5)[1])},
        r"\[4, 128\] and \[128, 5\]",
    ),
    "rank 0": ({"blocks.0.att.key": pair(128, 128, 0)}, r"\[0, 128\]"),
    "no dimensions": (
        {"blocks.0.att.key": (np.float32(1).reshape(()), np.float32(1).reshape(()))},
        r"shapes \[\] and \[\]",
    ),
    "infinite": (
        {"blocks.0.att.key": (np.full((4, 128), np.inf, "<f4"), pair(128, 128)[1])},
        "not finite",
    ),
    "not a number": (
        {"blocks.0.att.key": (pair(128, 128)[0], np.full((128, 4), np.nan, "<f4"))},
        "not finite",
    ),
    "too large": (
        {"blocks.0.att.key": (np.full((4, 128), 3e38, "<f4"), np.full((128, 4), 3e38, "<f4"))},
        "not finite or does not fit bf16",
    ),
    "nothing": ({}, "no lora_A and lora_B"),
}


@pytest.mark.parametrize("spelling", ["pth", "peft"])
@pytest.mark.parametrize("name", MISFITS)
def test_an_adapter_of_another_model_is_refused(checkpoint, tmp_path, name, spelling):
    pairs, match = MISFITS[name]
    if spelling == "pth":
        adapter = wkvm.Adapter(write_pth(tmp_path / "a.pth", pairs), alpha=4)
    else:
        adapter = wkvm.Adapter(write_peft(tmp_path / "a", pairs))
    refused(checkpoint, adapter, FormatError, match)


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"blocks.0.ln1.weight": np.zeros(64, "<f4")}, "no place"),
        ({"blocks.0.att.w1": np.zeros((32, 128), "<f4")}, "no place"),  # fla's, transposed
        ({"blocks.0.att.key.weight": np.zeros((128, 128), "<f4")}, "a whole matrix beside"),
        ({"blocks.0.att.value.lora_A": np.zeros((4, 128), "<f4")}, "one factor for"),
        ({"model.blocks.0.att.key.lora_A": np.zeros((4, 128), "<f4")}, "second one"),
        ({"unheard.of": np.zeros(2, "<f4")}, "no place"),
    ],
)
def test_a_tensor_without_a_place_is_refused(checkpoint, tmp_path, extra, match):
    pairs = {"blocks.0.att.key": pair(128, 128)}
    path = write_pth(tmp_path / "a.pth", pairs, extra=extra)
    refused(checkpoint, wkvm.Adapter(path, alpha=4), FormatError, match)


def test_a_value_that_float16_cannot_hold_is_refused(raw, tmp_path):
    checkpoint_files.write_safetensors(tmp_path / "base.safetensors", of_type(raw, "F16"))
    large = (np.full((1, 128), 300, "<f4"), np.full((128, 1), 300, "<f4"))
    path = write_pth(tmp_path / "a.pth", {"blocks.0.att.key": large})
    with pytest.raises(FormatError, match="does not fit f16"):
        wkvm.load(tmp_path / "base.safetensors", adapter=wkvm.Adapter(path, alpha=1))


def test_what_an_adapter_needs_and_does_not_need_is_said(checkpoint, tmp_path):
    pairs = random_pairs(0)
    pth = write_pth(tmp_path / "a.pth", pairs)
    init = write_pth(tmp_path / "init_pissa.pth", random_pairs(1), "init_")
    lora = write_peft(tmp_path / "lora", pairs)
    pissa = write_peft(tmp_path / "pissa", pairs, init_lora_weights="pissa")
    other = write_peft(tmp_path / "other", random_pairs(1), lora_alpha=9)
    fewer = write_pth(tmp_path / "fewer.pth", {"head": pair(512, 128)}, "init_")
    narrow = write_pth(tmp_path / "narrow.pth", random_pairs(1, rank=3), "init_")
    for adapter, error, match in [
        (wkvm.Adapter(pth), InvalidArgumentError, "--adapter-alpha.*init_pissa.pth"),
        (wkvm.Adapter(pth, alpha=4, init=init), InvalidArgumentError, "ignores alpha"),
        (wkvm.Adapter(init, alpha=4), InvalidArgumentError, "what PiSSA began with"),
        (wkvm.Adapter(lora, alpha=4), InvalidArgumentError, "says its alpha"),
        (wkvm.Adapter(lora, init=lora), InvalidArgumentError, "plain LoRA"),
        (wkvm.Adapter(pissa), UnsupportedError, "PiSSA adapter.*--adapter-init.*convert"),
        (wkvm.Adapter(pissa, init=other), FormatError, "do not belong together"),
        (wkvm.Adapter(pissa, init=init), FormatError, "do not belong together"),
        (wkvm.Adapter(pth, init=fewer), FormatError, "do not belong together"),
        (wkvm.Adapter(pth, init=narrow), FormatError, "do not belong together"),
    ]:
        refused(checkpoint, adapter, error, match)


def test_a_folder_or_file_that_is_no_adapter_is_refused(checkpoint, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(checkpoint, tmp_path / "empty", FormatError, "adapter_config.json")
    refused(checkpoint, tmp_path / "none.pth", FileError, "none.pth")
    folder = write_peft(tmp_path / "peft", random_pairs(0))
    assert logits(
        wkvm.load(checkpoint("r7-s128"), adapter=folder / "adapter_model.safetensors")
    ) == logits(wkvm.load(checkpoint("r7-s128"), adapter=folder))
    (folder / "adapter_config.json").unlink()
    refused(checkpoint, folder, FormatError, "adapter_config.json")
    refused(checkpoint, folder / "adapter_model.safetensors", FileError, "adapter_config.json")
    refused(checkpoint, wkvm.Adapter(checkpoint("r7-s128"), alpha=4), FormatError, "no adapter")
    for config in (b"", b"[]", b"{", b'{"r": 1, "r": 2}', b"\xff", b"[" * 100000):
        (folder / "adapter_config.json").write_bytes(config)
        refused(checkpoint, folder, FormatError, "adapter_config.json")
    for no_path in (5, b"a.pth", [folder]):
        refused(checkpoint, no_path, InvalidArgumentError, "must be the path")


def test_an_adapter_is_no_model_and_a_converted_model_takes_none(checkpoint, tmp_path):
    folder = write_peft(tmp_path / "peft", random_pairs(0))
    with pytest.raises(UnsupportedError, match=r"holds an adapter.*--adapter"):
        wkvm.load(folder / "adapter_model.safetensors")
    convert_checkpoint(checkpoint("r7-s128"), tmp_path / "converted.safetensors")
    with pytest.raises(InvalidArgumentError, match="merge the adapter into the original"):
        wkvm.load(tmp_path / "converted.safetensors", adapter=folder)


def test_integers_are_refused(checkpoint, tmp_path):
    raw = {
        "head.lora_A": ("I8", (4, 128), bytes(512)),
        "head.lora_B": ("I8", (512, 4), bytes(2048)),
    }
    path = pth_files.write_checkpoint(tmp_path / "a.pth", raw)
    refused(checkpoint, wkvm.Adapter(path, alpha=4), FormatError, "i8, not a float type")


def test_any_damage_is_a_typed_error_or_harmless(checkpoint, tmp_path):
    folder = write_peft(tmp_path / "peft", {"blocks.0.att.key": pair(128, 128)})
    path = folder / "adapter_model.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(15)
    for _ in range(150):
        data = bytearray(whole)
        if rng.integers(2):
            data = data[: rng.integers(len(data))]
        else:
            data[rng.integers(400)] = rng.integers(256)
        path.write_bytes(data)
        try:
            with open_model(checkpoint("r7-s128"), wkvm.Adapter(folder)) as source:
                for i in range(len(source.tensors)):
                    source.read(i)
        except wkvm.WkvmError:
            pass


# ---- the command line


def wkvm_command(*arguments, ok=True):
    finished = subprocess.run(
        [sys.executable, "-m", "wkvm", *arguments], capture_output=True, text=True, check=False
    )
    assert (finished.returncode == 0) == ok, finished.stderr
    return finished


def test_generate_and_convert_take_an_adapter(checkpoint, tmp_path):
    pth = write_pth(tmp_path / "a.pth", random_pairs(20))
    vocab = vocabularies.write_small(tmp_path / "vocabulary.txt")
    converted = tmp_path / "converted.safetensors"
    wkvm_command(
        "convert", checkpoint("r7-s128"), converted, "--adapter", pth, "--adapter-alpha", "9"
    )
    generate = ["generate", "once", "--vocab", vocab, "--temperature", "0", "--max-tokens", "12"]
    merged_texts = {
        wkvm_command(*generate, *options).stdout
        for options in (
            ("--model", converted),
            ("--model", checkpoint("r7-s128"), "--adapter", pth, "--adapter-alpha", "9"),
        )
    }
    plain = wkvm_command(*generate, "--model", checkpoint("r7-s128")).stdout
    assert len(merged_texts) == 1
    assert plain not in merged_texts
    without = wkvm_command(*generate, "--adapter-alpha", "9", ok=False)
    assert without.returncode == 2
    assert "--adapter" in without.stderr
