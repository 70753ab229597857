"""Facts about positions are those of the checkpoint: its config, its buffers, its tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from tests.checkpoints import LLAMA_LIKE, VOCABULARY, byte_level_tokenizer
from tests.conftest import Loaded
from tfviz.config import RopeScaling, TransformerConfig
from tfviz.model import Transformer
from tfviz.model.positions.rope import angles
from tfviz.sources.base import LoadedModel
from tfviz.sources.huggingface import load_folder
from tfviz.sources.positions import read
from tfviz.sources.scratch import ScratchModel, character_tokenizer


def llama(**rope: Any) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA_LIKE | {"rope_parameters": rope}))


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
NEOX: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)
GPTJ: dict[str, Any] = dict(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
GEMMA4: dict[str, Any] = {  # five sliding layers with heads of 16 dimensions, then a full one with heads of 32
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 8,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 400,
    "hidden_size_per_layer_input": 8,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
}
LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 32,
    },
}
LONG: dict[str, Any] = LLAMA_LIKE | {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 131072,
}
MORE: dict[str, Callable[[], Any]] = {
    "llama3": lambda: llama(**LLAMA3),
    "yarn": lambda: llama(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32),
    "longrope": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**LLAMA_LIKE | LONGROPE, pad_token_id=0)),
    "gemma4": lambda: hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**GEMMA4)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**NEOX)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**GPTJ)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**LLAMA_LIKE, head_dim=8, sliding_window=4)),
    "nope": lambda: hf.SmolLM3ForCausalLM(
        hf.SmolLM3Config(**LLAMA_LIKE | {"num_hidden_layers": 4}, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    ),
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**LLAMA_LIKE)),
}


def theirs(name: str, folder: Path) -> LoadedModel:
    """A tiny random model of one of MORE."""
    return saved(MORE[name], folder)


def saved(make: Callable[[], Any], folder: Path) -> LoadedModel:
    """A tiny random model, saved and loaded as a person's folder is."""
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    return load_folder(folder, model_id=folder.name, revision="local", device=torch.device("cpu"))


def ours(**changes: Any) -> ScratchModel:
    """A tiny random Transformer of ours that reads the letters a to z."""
    torch.manual_seed(0)
    letters = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz "]
    shape: dict[str, Any] = {"d_model": 32, "d_ff": 48, "n_heads": 4, "n_encoder_layers": 0, "n_decoder_layers": 2}
    config = TransformerConfig(**{"vocab_size": len(letters), "max_seq_len": 40, "pad_id": 0} | shape | changes)
    model = Transformer(config).eval().requires_grad_(False)
    return ScratchModel(
        id="ours",
        label="ours",
        revision="",
        family=config.family,
        precision="fp32",
        device=torch.device("cpu"),
        model=model,
        tokenizer=character_tokenizer(letters),
        token_limit=config.max_seq_len,
        has_logits=True,
        n_parameters=1,
        weight_bytes=4,
        random=True,
    )


def test_a_learned_table_is_the_checkpoints_own(loaded: Loaded) -> None:
    model = loaded("gpt2")
    facts = read(model)
    table = facts.tables["self"]
    assert table.name == "transformer.wpe" and table.positions == facts.longest == 64 and not facts.angles
    assert np.array_equal(table.rows, model.model.get_submodule("transformer.wpe").weight.numpy())  # type: ignore[union-attr,operator]
    assert set(read(loaded("bart")).tables) == {"encoder", "decoder"}


def test_angles_are_read_from_the_buffer_with_what_the_config_says(loaded: Loaded) -> None:
    (said,) = read(loaded("llama")).angles
    assert (said.base, said.scaling, said.grown, said.layers) == (10_000, "default", 1.0, "")
    assert np.allclose(said.theta, angles(8)[0].numpy())
    assert not read(loaded("llama")).tables


def test_scaling_and_partial_dimensions(tmp_path: Path) -> None:
    (scaled,) = read(theirs("llama3", tmp_path / "a")).angles
    assert scaled.scaling == "llama3" and scaled.numbers["factor"] == 8 and scaled.base == 5e5
    (yarn,) = read(theirs("yarn", tmp_path / "b")).angles
    ours_theta, grown = angles(8, 1e4, RopeScaling("yarn", 4.0, original=32))
    assert np.allclose(yarn.theta, ours_theta.numpy()) and yarn.grown == pytest.approx(grown)
    (partial,) = read(theirs("neox", tmp_path / "c")).angles
    assert len(partial.theta) == 2 and partial.numbers["partial_rotary_factor"] == 0.25
    (table,) = read(theirs("gptj", tmp_path / "d")).angles  # it keeps sines and cosines, not angles
    assert np.allclose(table.theta, [1, 0.01]) and table.base is None


def test_gemma4_turns_a_quarter_of_its_full_layers_heads(tmp_path: Path) -> None:
    facts = read(theirs("gemma4", tmp_path))
    assert facts.kinds == ("sliding_attention",) * 5 + ("full_attention",)
    (sliding,), (full,) = facts.angles_of(0, 16), facts.angles_of(5, 32)
    assert np.allclose(sliding.theta, 10_000.0 ** (-np.arange(8) / 8), rtol=1e-6)
    assert full.turning.tolist() == [0, 1, 2, 3] and len(full.theta) == 16
    assert np.allclose(full.theta[:4], [1, 0.421697, 0.177828, 0.0749894], rtol=2e-6)


THETA = 500_000.0 ** (-np.arange(32) / 32)
NEW = {14: 3.211446e-3, 15: 1.290548e-3, 16: 4.295568e-4, 17: 9.708288e-5, 18: 1.946164e-5, 31: 9.418307e-8}
LLAMA32 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("old", [False, True], ids=["rope_parameters", "rope_scaling"])
def test_llama_32s_scaling_has_its_angles_in_both_spellings(tmp_path: Path, old: bool) -> None:
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**LONG))
    model.save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    said |= {"rope_theta": 500_000.0, "rope_scaling": LLAMA32 | {"type": "llama3"}} if old else {}
    said["rope_parameters"] = LLAMA32 | {"rope_type": "llama3", "rope_theta": 500_000.0}
    if old:
        del said["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    (found,) = read(load_folder(tmp_path, model_id="x", revision="local", device=torch.device("cpu"))).angles
    assert found.scaling == "llama3" and found.base == 500_000 and found.grown == 1
    assert np.allclose(found.theta[:15], THETA[:15], rtol=1e-6) and np.allclose(found.theta[18:], THETA[18:] / 32)
    assert {i: float(found.theta[i]) for i in NEW} == pytest.approx(NEW, rel=1e-6)


def test_longrope_grows_q_and_k_by_the_root_of_its_logarithms(tmp_path: Path) -> None:
    (said,) = read(theirs("longrope", tmp_path)).angles
    assert said.scaling == "longrope" and said.grown == pytest.approx((1 + np.log(4) / np.log(32)) ** 0.5)  # 128 / 32


def test_gemma3_names_the_layers_its_angles_are_for(tmp_path: Path) -> None:
    (said,) = read(theirs("gemma3", tmp_path)).angles  # three layers: all of them slide
    assert said.layers == "sliding_attention" and said.base == 10_000


def test_t5_has_a_table_for_each_side(loaded: Loaded) -> None:
    facts = read(loaded("t5"))
    assert facts.longest is None and not facts.tables and not facts.angles
    encoder, decoder = facts.buckets_of("encoder", 2), facts.buckets_of("decoder", 0)
    assert encoder is not None and decoder is not None
    assert encoder.table.shape == (32, 4) and encoder.both_sides and not decoder.both_sides
    assert facts.buckets_of("self", 0) is None


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rope", "alibi", "none"])
def test_our_models_say_what_their_config_says(positions: str) -> None:
    facts = read(ours(positions=positions, rope_pairs="interleaved"))
    assert facts.longest == 40
    assert bool(facts.tables) == (positions in {"sinusoidal", "learned"})
    assert [said.pairs for said in facts.angles] == (["interleaved"] if positions == "rope" else [])
    assert (facts.slopes is not None) == (positions == "alibi")
    if facts.slopes is not None:
        assert facts.slopes.tolist() == [0.25, 0.0625, 0.015625, 0.00390625]
