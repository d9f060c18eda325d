"""What is no plain RWKV-7 is refused by name; any shape that is one runs."""

import checkpoint_files
import numpy as np
import pytest
import reference

import wkvm
from wkvm.errors import FormatError, UnsupportedError

#: Files as their authors' code names the tensors -> what the message must say.
VARIANTS = {
    "RWKV-7a": (["ffn.s_emb.weight", "ffn.s_emb_x.weight", "ffn.s0"], "RWKV-7 with DeepEmbed"),
    "RWKV-7b": (["ffn.s_emb.weight", "qkv.qq.weight"], "DeepEmbed .* and DEA attention"),
    "RWKV-8 rc00": (["ffn.enn.weight"], "DeepEmbed"),
    "RWKV-8 rc00 hybrid": (["qkv.ennk.weight", "ffn.enn.weight"], "DEA attention"),
    "ROSA": (["rosa.q.weight", "rosa.rosa_qkv.emb"], "ROSA"),
    "RWKV-6": (["att.time_maa_w1", "att.time_faaaa", "att.time_decay"], "an RWKV-6 checkpoint"),
    "RWKV-6 .st": (["att.time_mix_w1", "att.time_first", "att.time_decay"], "an RWKV-6 checkpoint"),
    "RWKV-5.2": (["att.time_faaaa", "att.time_decay", "att.ln_x.weight"], "an RWKV-5 checkpoint"),
    "RWKV-5.0": (["att.time_first", "att.time_decay", "att.ln_x.weight"], "an RWKV-4 or 5 check"),
    "RWKV-4": (["att.time_first", "att.time_decay", "att.time_mix_k"], "an RWKV-4 or 5 check"),
    "LoRA": (["att.key.lora_A", "att.key.lora_B"], r"an adapter: .*--adapter"),
    "state": (["att.time_state"], r"a tuned initial state: .*--state"),
}


def with_tensors(checkpoint, path, names, drop=()):
    """r7-s128 with one more tensor per name in each block, and without those that `drop` names."""

    def edit(arrays):
        for i in range(3):
            arrays |= {f"blocks.{i}.{name}": np.zeros((4, 4), "<f4") for name in names}
        for name in [name for name in arrays if name.endswith(tuple(drop))]:
            del arrays[name]

    return checkpoint_files.write_edited(checkpoint("r7-s128"), path, edit)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_refused_by_name(checkpoint, tmp_path, variant):
    names, match = VARIANTS[variant]
    path = with_tensors(checkpoint, tmp_path / "m.safetensors", names)
    with pytest.raises(UnsupportedError, match=match) as info:
        wkvm.load(path)
    assert str(path) in str(info.value)
    assert f"blocks.0.{names[0].split('.')[0]}." in str(info.value)


def test_an_older_family_is_named_before_what_it_lacks(checkpoint, tmp_path):
    names = VARIANTS["RWKV-6"][0]
    lacking = ("att.r_k", "att.x_r", "att.k_k")
    path = with_tensors(checkpoint, tmp_path / "m.safetensors", names, lacking)
    with pytest.raises(UnsupportedError, match="an RWKV-6 checkpoint"):
        wkvm.load(path)


def test_a_tensor_of_no_known_variant_is_still_refused(checkpoint, tmp_path):
    path = with_tensors(checkpoint, tmp_path / "m.safetensors", ["att.novelty"])
    with pytest.raises(FormatError, match=r"blocks\.0\.att\.novelty is not part of"):
        wkvm.load(path)


def random_model(path, head_size, n_heads, n_vocab, n_blocks=2):
    """A checkpoint of any shape, float32, with weights small enough that nothing saturates."""
    rng = np.random.default_rng(head_size + n_vocab)
    D, rank, F = head_size * n_heads, 16, 2 * head_size * n_heads

    def normal(*shape, mean=0.0, std=0.1):
        return (mean + std * rng.standard_normal(shape)).astype("<f4")

    def norm(name):
        return {f"{name}.weight": normal(D, mean=1.0), f"{name}.bias": normal(D)}

    arrays = {"emb.weight": normal(n_vocab, D, std=1.0), "head.weight": normal(n_vocab, D)}
    arrays |= norm("ln_out") | norm("blocks.0.ln0")
    for i in range(n_blocks):
        b = f"blocks.{i}."
        arrays |= norm(b + "ln1") | norm(b + "ln2") | norm(b + "att.ln_x")
        arrays |= {f"{b}att.x_{z}": normal(1, 1, D, mean=0.5) for z in "rwkvag"}
        for z in "wavg":
            arrays[f"{b}att.{z}1"] = normal(D, rank)
            arrays[f"{b}att.{z}2"] = normal(rank, D)
        arrays |= {f"{b}att.{z}0": normal(1, 1, D, std=1.0) for z in "wav"}
        arrays |= {f"{b}att.{z}": normal(1, 1, D, mean=1.0) for z in ("k_k", "k_a")}
        arrays[b + "att.r_k"] = normal(n_heads, head_size)
        for z in ("receptance", "key", "value", "output"):
            arrays[f"{b}att.{z}.weight"] = normal(D, D, std=D**-0.5)
        arrays[b + "ffn.x_k"] = normal(1, 1, D, mean=0.5)
        arrays[b + "ffn.key.weight"] = normal(F, D, std=D**-0.5)
        arrays[b + "ffn.value.weight"] = normal(D, F, std=F**-0.5)
    raw = {name: ("F32", a.shape, a.tobytes()) for name, a in arrays.items()}
    checkpoint_files.write_safetensors(path, raw)
    return path


@pytest.mark.parametrize(
    ("head_size", "n_heads", "n_vocab"),
    [(16, 3, 7), (32, 4, 300), (48, 2, 257), (64, 1, 50304), (128, 2, 512), (256, 1, 65)],
)
def test_any_head_size_and_vocabulary_agrees_with_the_reference(
    tmp_path, head_size, n_heads, n_vocab
):
    path = random_model(tmp_path / "m.safetensors", head_size, n_heads, n_vocab)
    model = wkvm.load(path, dtype="fp32")
    assert model.info["head_size"] == head_size
    assert model.info["n_vocab"] == n_vocab
    tokens = np.random.default_rng(0).integers(0, n_vocab, 40).tolist()
    session = model.session()
    logits = session.forward(tokens, logits="all")

    truth = reference.Reference(checkpoint_files.weights(path))
    state = truth.new_state()
    expected = truth.forward(tokens, state)
    assert np.ptp(expected) > 1
    # float32 against float64 over 2 blocks and 40 tokens; measured: below 2e-5.
    assert np.abs(logits - expected).max() <= 1e-4
    for name, array in session.state().items():
        assert array.shape == state[name].shape
        assert np.abs(array - state[name]).max() <= 1e-4 * max(1, np.abs(state[name]).max())
