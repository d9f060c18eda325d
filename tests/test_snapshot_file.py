"""A snapshot is a value that nobody can change, and a stranger's file of one is a typed error."""

import json
from dataclasses import FrozenInstanceError, replace

import checkpoint_files
import numpy as np
import pytest

import wkvm
from wkvm._engine import SafetensorsFile
from wkvm.errors import FormatError, StateMismatchError, UnsupportedError
from wkvm.hypervisor.snapshot import Identity, Snapshot

IDENTITY = Identity(
    family="rwkvx",
    dtype="int8",
    vocabulary="a" * 64,
    policy="memory",
    policy_options={"memory_keep_tokens": 128, "memory_keep_ratio": 0.25},
    kv_dtype="fp16",
    fingerprint="b" * 64,
)


def make(pending=7, parent="c" * 64, lineage="", identity=IDENTITY):
    state = {
        "rwkv.0.wkv": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "attn.0.k_cache": np.arange(10, dtype=np.float16).reshape(5, 2),
        "x_last": np.ones(3, np.float32),
    }
    tokens = np.array([1, 2, 65535], np.uint32)
    return Snapshot.make(identity, tokens, pending, state, b"dice", parent, lineage)


# ---------------------------------------------------------------- a value


@pytest.mark.parametrize("pending", [None, 0, 7])
@pytest.mark.parametrize("lineage", ["", "d" * 64])
def test_a_saved_snapshot_is_read_back_equal(tmp_path, pending, lineage):
    snapshot = make(pending, lineage=lineage)
    snapshot.save(tmp_path / "s")
    read = Snapshot.load(tmp_path / "s")
    assert read == snapshot
    assert (read.identity, read.pending, read.sampler) == (IDENTITY, pending, b"dice")
    assert (read.parent, read.lineage) == ("c" * 64, lineage)
    assert read.tokens.tolist() == [1, 2, 65535]
    assert read.state.keys() == snapshot.state.keys()
    for name, array in snapshot.state.items():
        assert (read.state[name].dtype, read.state[name].shape) == (array.dtype, array.shape)
        assert read.state[name].tobytes() == array.tobytes()
    read.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "s").read_bytes()


def test_equal_snapshots_are_one_key_and_others_are_not():
    assert make() == make()
    assert hash(make()) == hash(make())
    others = [
        make(pending=None),
        make(parent=""),
        make(lineage="d" * 64),
        make(identity=replace(IDENTITY, kv_dtype="fp32")),
        make(identity=replace(IDENTITY, policy_options={"memory_keep_tokens": 128})),
    ]
    assert len({make(), make(), *others}) == 1 + len(others)
    assert make() != make().id


def test_a_snapshot_cannot_be_changed():
    options = {"memory_keep_tokens": 128}
    snapshot = make(identity=replace(IDENTITY, policy_options=options))
    options["memory_keep_tokens"] = 1
    assert snapshot.identity.policy_options == {"memory_keep_tokens": 128}
    with pytest.raises(TypeError):
        snapshot.identity.policy_options["memory_keep_tokens"] = 1
    with pytest.raises(TypeError):
        snapshot.state["x_last"] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        snapshot.state["x_last"][0] = 5
    with pytest.raises(ValueError, match="read-only"):
        snapshot.tokens[0] = 5
    with pytest.raises(FrozenInstanceError):
        snapshot.pending = None
    with pytest.raises(FrozenInstanceError):
        snapshot.identity.family = "rwkv7"


def test_a_snapshot_does_not_follow_the_dict_that_it_was_made_of():
    state = {"x_last": np.ones(3, np.float32)}
    snapshot = Snapshot.make(IDENTITY, np.zeros(0, np.uint32), None, state, b"", "", "")
    state["x_last"] = np.zeros(3, np.float32)
    assert snapshot.state["x_last"].tolist() == [1, 1, 1]


# ---------------------------------------------------------------- whom it belongs to


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"family": "rwkv7"},
            r"made with family 'rwkv7', this model runs 'rwkvx': resume it with the model that",
        ),
        (
            {"dtype": "fp32", "fingerprint": "0" * 64},
            r"made with dtype 'fp32', this model runs 'int8': load the model with dtype='fp32'",
        ),
        (
            {"vocabulary": "", "fingerprint": "0" * 64},
            r"made with vocabulary none, this model runs 'aaaa.*: load .* vocabulary .*\(vocab=",
        ),
        (
            {"policy": "window", "policy_options": {"window_sinks": 4, "window_size": 24}},
            r"made with policy 'window', this model runs 'memory': .* with policy='window'",
        ),
        (
            {"policy_options": {"memory_keep_tokens": 64, "memory_keep_ratio": 0.25}},
            r"made with policy_options memory_keep_ratio=0.25, memory_keep_tokens=64, this model "
            r"runs memory_keep_ratio=0.25, memory_keep_tokens=128: load the model with "
            r"memory_keep_ratio=0.25, memory_keep_tokens=64",
        ),
        (
            {"kv_dtype": "fp32"},
            r"made with kv_dtype 'fp32', this model runs 'fp16': .* with kv_dtype='fp32'",
        ),
        ({"fingerprint": "0" * 64}, r"made with fingerprint '0000.*these are other weights"),
    ],
)
def test_a_mismatch_names_what_differs_and_the_remedy(changes, words):
    IDENTITY.require(replace(IDENTITY))
    with pytest.raises(StateMismatchError, match=words) as info:
        IDENTITY.require(replace(IDENTITY, **changes))
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("how", ["snapshot", "file"])
def test_a_model_of_another_dtype_asks_for_that_dtype(checkpoint, tmp_path, how):
    session = wkvm.load(checkpoint("r7-s128"), dtype="int8", n_slots=1).session()
    session.forward([1, 2, 3])
    source = session.snapshot()
    if how == "file":
        source.save(tmp_path / "s")
        source = tmp_path / "s"
    other = wkvm.load(checkpoint("r7-s128"), dtype="fp32", n_slots=1)
    with pytest.raises(StateMismatchError, match="load the model with dtype='int8'"):
        other.resume(source)


# ---------------------------------------------------------------- hostile files


@pytest.fixture
def rewritten(tmp_path):
    """Writes a saved snapshot anew after `edit` has changed its tensors and metadata."""
    make().save(tmp_path / "original")
    content = (tmp_path / "original").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])

    def rewritten(edit):
        tensors = checkpoint_files.read_safetensors(tmp_path / "original")
        tensors = {name: raw for name, raw in tensors.items() if not name.startswith("__pad.")}
        metadata = dict(header["__metadata__"])
        edit(tensors, metadata)
        checkpoint_files.write_safetensors(tmp_path / "stranger", tensors, metadata)
        return tmp_path / "stranger"

    return rewritten


class Blind:
    """A file whose tensors are described, but cannot be read."""

    def __init__(self, path):
        file = SafetensorsFile(path)
        self.metadata, self.tensors = file.metadata, file.tensors


@pytest.fixture
def blind(monkeypatch):
    monkeypatch.setattr("wkvm.hypervisor.snapshot.SafetensorsFile", Blind)


def refused(path, match):
    with pytest.raises(FormatError, match=match) as info:
        Snapshot.load(path)
    message = str(info.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_the_same_snapshot_in_another_layout_is_read(rewritten):
    assert Snapshot.load(rewritten(lambda tensors, metadata: None)) == make()


def test_another_file_is_not_a_snapshot(tmp_path, rewritten):
    refused(rewritten(lambda tensors, metadata: metadata.clear()), "not a wkvm snapshot")
    changed = rewritten(lambda tensors, metadata: metadata.update({"wkvm.snapshot": "2"}))
    refused(changed, "not a wkvm snapshot of version 1")
    (tmp_path / "text").write_text("state of the art")
    with pytest.raises((FormatError, UnsupportedError), match="text"):
        Snapshot.load(tmp_path / "text")


GOOD = json.loads(IDENTITY.to_json())
WRONG_IDENTITIES = {
    "nothing": "",
    "not json": "{]",
    "null": "null",
    "a list": json.dumps([GOOD]),
    "no fields": "{}",
    "a field less": json.dumps({k: v for k, v in GOOD.items() if k != "kv_dtype"}),
    "a field more": json.dumps(GOOD | {"lineage": ""}),
    "family is a number": json.dumps(GOOD | {"family": 7}),
    "family is a list": json.dumps(GOOD | {"family": ["rwkvx"]}),
    "dtype is null": json.dumps(GOOD | {"dtype": None}),
    "dtype is long": json.dumps(GOOD | {"dtype": "x" * 65}),
    "policy has two lines": json.dumps(GOOD | {"policy": "full\nof lines"}),
    "half a character": json.dumps(GOOD | {"policy": "\ud800"}),
    "fingerprint is true": json.dumps(GOOD | {"fingerprint": True}),
    "options are a list": json.dumps(GOOD | {"policy_options": [1]}),
    "options are null": json.dumps(GOOD | {"policy_options": None}),
    "options are nested": json.dumps(GOOD | {"policy_options": {"a": {"b": 1}}}),
    "an option is text": json.dumps(GOOD | {"policy_options": {"a": "1"}}),
    "an option is true": json.dumps(GOOD | {"policy_options": {"a": True}}),
    "an option is null": json.dumps(GOOD | {"policy_options": {"a": None}}),
    "an option is not a number": json.dumps(GOOD | {"policy_options": {"a": float("nan")}}),
    "an option is infinite": json.dumps(GOOD | {"policy_options": {"a": float("inf")}}),
    "an option overflows": json.dumps(GOOD | {"policy_options": {"a": 0}}).replace("0}", "1e999}"),
    "an option is huge": json.dumps(GOOD | {"policy_options": {"a": 2**63}}),
    "an option of many digits": json.dumps(GOOD | {"policy_options": {"a": 7}}).replace(
        "7}", "7" * 10_000 + "}"
    ),
    "an option of a long name": json.dumps(GOOD | {"policy_options": {"a" * 65: 1}}),
    "deep": "[" * 60_000,
    "deep options": json.dumps(GOOD | {"policy_options": 7}).replace("7,", "[" * 60_000 + ","),
    "long": json.dumps(GOOD | {"policy_options": {f"option{i}": i for i in range(6000)}}),
}


@pytest.mark.parametrize("name", WRONG_IDENTITIES)
def test_a_wrong_identity_is_refused_before_any_tensor_is_read(rewritten, blind, name):
    path = rewritten(lambda _, metadata: metadata.update({"wkvm.identity": WRONG_IDENTITIES[name]}))
    assert "save it again" in refused(path, "damaged snapshot")


@pytest.mark.parametrize("key", ["wkvm.parent", "wkvm.lineage"])
@pytest.mark.parametrize("value", ["x", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "../etc"])
def test_an_ancestor_that_is_no_id_is_refused(rewritten, blind, key, value):
    path = rewritten(lambda _, metadata: metadata.update({key: value}))
    refused(path, "is not the id of a snapshot; save it again")


def test_an_identity_that_says_something_twice_is_refused(rewritten):
    twice = IDENTITY.to_json()[:-1] + ', "family": "rwkvx"}'
    path = rewritten(lambda _, metadata: metadata.update({"wkvm.identity": twice}))
    refused(path, "digest does not match its content; save it again")


CHANGES = {
    "wkvm.identity": replace(IDENTITY, kv_dtype="fp32").to_json(),
    "wkvm.n_tokens": "4",
    "wkvm.tokens_sha256": "0" * 64,
    "wkvm.parent": "",
    "wkvm.lineage": "0" * 64,
    "wkvm.digest": "0" * 64,
    "wkvm.more": "",
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_entry_is_damage(rewritten, key):
    path = rewritten(lambda _, metadata: metadata.update({key: CHANGES[key]}))
    refused(path, "digest does not match its content; save it again")


@pytest.mark.parametrize("key", [key for key in CHANGES if key != "wkvm.more"])
def test_a_missing_entry_is_damage(rewritten, key):
    refused(rewritten(lambda _, metadata: metadata.pop(key)), "save it again")


WRONG_TENSORS = {
    "no tokens": lambda t: t.pop("tokens"),
    "no pending": lambda t: t.pop("pending"),
    "no sampler": lambda t: t.pop("sampler"),
    "tokens are floats": lambda t: t.update(tokens=("F32", (3,), bytes(12))),
    "tokens are bytes": lambda t: t.update(tokens=("U8", (12,), bytes(12))),
    "tokens in rows": lambda t: t.update(tokens=("U32", (1, 3), bytes(12))),
    "tokens without a dimension": lambda t: t.update(tokens=("U32", (), bytes(4))),
    "two pending": lambda t: t.update(pending=("U32", (2,), bytes(8))),
    "pending in rows": lambda t: t.update(pending=("U32", (1, 1), bytes(4))),
    "pending is a float": lambda t: t.update(pending=("F32", (1,), bytes(4))),
    "sampler is u32": lambda t: t.update(sampler=("U32", (1,), bytes(4))),
    "sampler in rows": lambda t: t.update(sampler=("U8", (2, 2), bytes(4))),
    "a state of integers": lambda t: t.update({"state.x_last": ("U32", (3,), bytes(12))}),
    "a state of bytes": lambda t: t.update({"state.x_last": ("U8", (12,), bytes(12))}),
    "a state of bf16": lambda t: t.update({"state.x_last": ("BF16", (3,), bytes(6))}),
    "a state of f64": lambda t: t.update({"state.x_last": ("F64", (3,), bytes(24))}),
    "a stranger": lambda t: t.update({"weights": ("F32", (3,), bytes(12))}),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_wrong_tensors_are_refused_before_any_is_read(rewritten, blind, name):
    path = rewritten(lambda tensors, _: WRONG_TENSORS[name](tensors))
    refused(path, "save it again")


def test_a_changed_bit_of_any_tensor_is_damage(rewritten):
    for name in ("tokens", "pending", "sampler", "state.x_last", "state.attn.0.k_cache"):

        def flip(tensors, _, name=name):
            dtype, shape, data = tensors[name]
            tensors[name] = dtype, shape, bytes([data[0] ^ 1]) + data[1:]

        refused(rewritten(flip), "digest does not match")


def test_another_shape_of_the_same_data_is_damage(rewritten):
    def reshape(tensors, _):
        dtype, _, data = tensors["state.rwkv.0.wkv"]
        tensors["state.rwkv.0.wkv"] = dtype, (2, 4, 3), data

    refused(rewritten(reshape), "digest does not match")
