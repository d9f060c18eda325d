"""Hundreds of broken checkpoints of every spelling: a typed error each, in little memory."""

import json
import random
import struct
from pathlib import Path

import checkpoint_files
import limited_memory
import pytest
import spellings

HUGE = (2**31, 2**31)  # overflows 64 bits with any element type


@pytest.fixture(scope="module")
def tensors(checkpoint):
    rounded = spellings.rounded(checkpoint_files.read(checkpoint("r7-s128")))
    return spellings.all_as_type(spellings.without_first_v(rounded), "F16")


def refused(folder: Path, at_least: int) -> None:
    """Every entry of `folder` is refused by a typed error, and there are enough of them."""
    found = limited_memory.outcomes(folder)
    assert len(found) >= at_least
    wrong = {name: how for name, how in found.items() if not how.startswith("refused ")}
    assert wrong == {}


def cut_at_random(data: bytes, n: int, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    return [data[: dice.randrange(len(data))] for _ in range(n)]


def with_header(data: bytes, edit) -> bytes:
    """A .safetensors file with its header edited as text, and the length before it set right."""
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    text = edit(data[8:begin].decode()).encode()
    return struct.pack("<Q", len(text)) + text + data[begin:]


def test_whole_ones_load_in_that_memory(tmp_path, tensors):
    config = spellings.hf_config(tensors)
    spellings.write_hf(tmp_path / "hf", spellings.hf(tensors), config)
    spellings.write_hf(tmp_path / "sharded", {}, config)
    (tmp_path / "sharded" / "model.safetensors").unlink()
    checkpoint_files.write_sharded(tmp_path / "sharded", spellings.hf(tensors, fused=True), 2)
    checkpoint_files.write_safetensors(tmp_path / "transposed", spellings.webrwkv(tensors))
    found = limited_memory.outcomes(tmp_path)
    assert found == dict.fromkeys(("hf", "sharded", "transposed"), "loaded")


def test_truncated_files_are_refused(tmp_path, tensors):
    config = spellings.hf_config(tensors)
    out = tmp_path / "out"
    source = spellings.write_hf(tmp_path / "hf", spellings.hf(tensors), config)
    weights = (source / "model.safetensors").read_bytes()
    text = (source / "config.json").read_bytes()
    begin = 8 + struct.unpack("<Q", weights[:8])[0]
    for i, data in enumerate(cut_at_random(weights, 20, 1) + cut_at_random(weights[:begin], 20, 2)):
        spellings.write_hf(out / f"weights{i:02}", {}, config)
        (out / f"weights{i:02}" / "model.safetensors").write_bytes(data)
    for i, data in enumerate(cut_at_random(text, 40, 3)):
        folder = out / f"config{i:02}"
        folder.mkdir()
        (folder / "model.safetensors").symlink_to(source / "model.safetensors")
        (folder / "config.json").write_bytes(data)
    checkpoint_files.write_safetensors(tmp_path / "model.st", spellings.webrwkv(tensors))
    transposed = (tmp_path / "model.st").read_bytes()
    begin = 8 + struct.unpack("<Q", transposed[:8])[0]
    cuts = cut_at_random(transposed, 20, 4) + cut_at_random(transposed[:begin], 20, 5)
    for i, data in enumerate(cuts):
        (out / f"transposed{i:02}").write_bytes(data)
    refused(out, 120)


def test_truncated_shards_and_indices_are_refused(tmp_path, tensors):
    config = spellings.hf_config(tensors)
    for i in range(20):
        folder = spellings.write_hf(tmp_path / f"{i:02}", {}, config)
        (folder / "model.safetensors").unlink()
        index = checkpoint_files.write_sharded(folder, spellings.hf(tensors), 2)
        broken = index if i % 2 else folder / "model-00002-of-00002.safetensors"
        data = broken.read_bytes()
        broken.write_bytes(data[: random.Random(i).randrange(len(data))])
    refused(tmp_path, 20)


#: Names of tensors that lead elsewhere, or that no number fits.
NAMES = (
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "model.layers.0.attn.x_r/../../x",
        "model.layers..attn.x_r",
    ),
    *("model.layers.-1.attn.x_r", "model.layers.00.attn.x_r", "model.layers.999999.attn.x_r"),
    *("model.layers.9999999.attn.x_r", "model.layers.1e3.attn.x_r", "model.layers.٣.attn.x_r"),
    *("model.layers.0.attn.x_z", "model.layers.0.attn.x_r\\u0000", "model.layers.0.attn.x_r\\n"),
    *("\\ud800", "model.layers.0.attn.w_lora.lora.1.weight", "model.layers.0.x_r", "", "x" * 10**6),
)


def test_tricks_with_names_are_refused(tmp_path, tensors):
    config = spellings.hf_config(tensors)
    kinds = {
        "hf": (spellings.hf(tensors), "model.layers.0.attn.x_r"),
        "transposed": (spellings.webrwkv(tensors), "blocks.0.att.x_r"),
    }
    for kind, (respelt, name) in kinds.items():
        for i, trick in enumerate(NAMES):
            folder = spellings.write_hf(tmp_path / f"{kind}{i:02}", respelt, config)
            file = folder / "model.safetensors"
            edited = with_header(
                file.read_bytes(), lambda text, n=name, t=trick: text.replace(f'"{n}"', f'"{t}"')
            )
            assert edited != file.read_bytes()
            file.write_bytes(edited)
    refused(tmp_path, 2 * len(NAMES))


@pytest.mark.parametrize("kind", ["hf", "transposed"])
def test_wrong_counts_and_absurd_sizes_are_refused(tmp_path, tensors, kind):
    respelt = spellings.hf(tensors) if kind == "hf" else spellings.webrwkv(tensors)
    checkpoint_files.write_safetensors(tmp_path / "whole", respelt)
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "out").mkdir()
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    dice = random.Random(6)
    for i in range(40):
        content = {name: dict(entry) for name, entry in header.items()}
        entry = content[dice.choice(list(content))]
        n = entry["data_offsets"][1] - entry["data_offsets"][0]
        entry["shape"] = [
            [n],
            [0],
            HUGE,
            [2**62, 8],
            [-1, -n // 2],
            [1] * 9,
            [n // 4 + 1, 2],
            [2**40],
        ][i % 8]
        text = json.dumps(content)
        (tmp_path / "out" / f"{i:02}").write_bytes(with_header(whole, lambda _, t=text: t))
    refused(tmp_path / "out", 40)


@pytest.mark.parametrize("kind", ["hf", "transposed"])
def test_a_missing_or_doubled_tensor_is_refused(tmp_path, tensors, kind):
    respelt = spellings.hf(tensors) if kind == "hf" else spellings.webrwkv(tensors)
    dice = random.Random(7)
    for i, name in enumerate(dice.sample(sorted(respelt), 20)):
        path = tmp_path / f"missing{i:02}"
        checkpoint_files.write_safetensors(path, {n: r for n, r in respelt.items() if n != name})
        surplus = {name.replace(".0.", ".5.") + "x": respelt[name]}
        checkpoint_files.write_safetensors(tmp_path / f"surplus{i:02}", respelt | surplus)
    refused(tmp_path, 40)


def test_any_damage_of_a_header_is_a_typed_error_or_harmless(tmp_path, tensors):
    config = spellings.hf_config(tensors)
    source = spellings.write_hf(tmp_path / "hf", spellings.hf(tensors), config)
    whole = (source / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", whole[:8])[0]
    dice = random.Random(8)
    (tmp_path / "out").mkdir()
    for i in range(60):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 2, 8])):
            damaged[dice.randrange(begin)] = dice.choice(b'\0 "0\xff{}:,9')
        (tmp_path / "out" / f"{i:02}").write_bytes(damaged)
    found = limited_memory.outcomes(tmp_path / "out")
    assert {name: how for name, how in found.items() if how.startswith("FAILED")} == {}
    assert sum(how.startswith("refused") for how in found.values()) >= 50
