"""The blocks of many architectures: none known by name, parameters counted once, in the order of the run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

from tests.checkpoints import ARCHITECTURES, VOCABULARY, byte_level_tokenizer
from tests.model.tiny import LLAMA_LIKE, build
from tfviz.errors import UnsupportedHere
from tfviz.inference.precision import PRECISIONS
from tfviz.sources import scratch
from tfviz.sources.architecture import Architecture, architecture
from tfviz.sources.base import LoadedModel
from tfviz.sources.catalog import CATALOG
from tfviz.sources.huggingface import load_folder

Loaded = Callable[[str], LoadedModel]
CPU = torch.device("cpu")
PRE = "norm attention add norm feed_forward add"
POST = "attention add norm feed_forward add norm"
SANDWICH = "norm attention norm add norm feed_forward norm add"
ORDER = {
    "gpt2": [PRE],
    "llama": [PRE],
    "qwen3": [PRE],
    "mistral": [PRE],
    "opt": [PRE],
    "gemma2": [SANDWICH],
    "bert": [POST],
    "bert-mlm": [POST],
    "roberta": [POST],
    "albert": [POST],
    "t5": [PRE, "norm attention add norm cross add norm feed_forward add"],
    "bart": [POST, "attention add norm cross add norm feed_forward add norm"],
    "marian": [POST, "attention add norm cross add norm feed_forward add norm"],
}
POSITIONS = {
    "gpt2": "learned",
    "llama": "rope",
    "qwen3": "rope",
    "mistral": "rope",
    "opt": "learned",
    "gemma2": "rope",
    "bert": "learned",
    "bert-mlm": "learned",
    "roberta": "learned",
    "albert": "learned",
    "t5": "relative",
    "bart": "learned",
    "marian": "sinusoidal",
}


def look(loaded: LoadedModel, text: str = "The animal didn't cross") -> Architecture:
    return architecture(loaded, loaded.prompt(text))


def counted(found: Architecture) -> int:
    return sum(block.parameters for block in found.blocks)


def kinds(found: Architecture) -> list[str]:
    return [" ".join(block.kind for block in side.layers[0].blocks) for side in found.sides]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_lies_in_one_block(loaded: Loaded, name: str) -> None:
    found = look(loaded(name))
    assert counted(found) == found.total == sum(one.numel() for one in loaded(name).model.parameters())
    assert not found.unused


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_order_is_that_of_the_run(loaded: Loaded, name: str) -> None:
    found = look(loaded(name))
    assert kinds(found) == ORDER[name]
    assert all(layer.gap == 0 for side in found.sides for layer in side.layers)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_positions_are_known_by_where_they_enter(loaded: Loaded, name: str) -> None:
    for side in look(loaded(name)).sides:
        schemes = [block.detail["scheme"] for block in side.before if block.kind == "positions"]
        assert schemes == [POSITIONS[name]]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_carry_the_numbers_of_their_attentions(loaded: Loaded, name: str) -> None:
    for side in look(loaded(name)).sides:
        assert [layer.attention for layer in side.layers] == list(range(len(side.layers)))
        cross = [layer.cross for layer in side.layers]
        assert cross == (list(range(len(side.layers))) if side.name == "decoder" else [None] * len(side.layers))


def test_shapes_are_those_of_this_sentence(loaded: Loaded) -> None:
    model = loaded("llama")
    prompt = model.prompt("The animal didn't cross the street")
    found = architecture(model, prompt)
    n = prompt.n_tokens
    assert {block.shape for block in found.sides[0].layers[1].blocks} == {(n, 32)}
    attention = next(block for block in found.sides[0].layers[1].blocks if block.kind == "attention")
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "n_query": n, "n_key": n}
    assert dict(attention.detail) == sizes | {"biased": False}
    assert found.sides[0].after[-1].kind == "head" and found.sides[0].after[-1].shape == (n, VOCABULARY)


def test_a_tied_head_is_counted_in_the_embedding(loaded: Loaded) -> None:
    tied, free = look(loaded("gpt2")).sides[0].after[-1], look(loaded("qwen3")).sides[0].after[-1]
    assert tied.parameters == 0 and tied.weights[0].shared
    assert free.parameters == VOCABULARY * 32


def test_layers_that_share_their_weights_have_them_once(loaded: Loaded) -> None:
    first, second = look(loaded("albert")).sides[0].layers
    assert first.parameters > 0 == second.parameters and first.path == second.path


def saved(model: nn.Module, folder: Path) -> LoadedModel:
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)  # type: ignore[operator]
    byte_level_tokenizer().save_pretrained(folder)
    return load_folder(folder, model_id="it", revision="", device=CPU)


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_attention_and_feed_forward_side_by_side(tmp_path: Path) -> None:
    """GPT-NeoX: one addition of three, the feed-forward reads its own norm of the layer's input."""
    config = hf.GPTNeoXConfig(**SMALL, intermediate_size=64, max_position_embeddings=64)
    found = look(saved(hf.GPTNeoXForCausalLM(config), tmp_path))
    assert kinds(found) == ["norm attention norm feed_forward add"]
    assert [block.reads for block in found.sides[0].layers[0].blocks] == [(-1,), (0,), (-1,), (2,), (-1, 1, 3)]
    assert counted(found) == found.total


def test_experts_are_one_feed_forward(tmp_path: Path) -> None:
    config = hf.MixtralConfig(**SMALL, intermediate_size=48, num_key_value_heads=2, num_local_experts=4)
    found = look(saved(hf.MixtralForCausalLM(config), tmp_path))
    assert kinds(found) == [PRE] and counted(found) == found.total
    block = next(block for block in found.sides[0].layers[0].blocks if block.kind == "feed_forward")
    assert block.detail["experts"] == 4 and block.detail["hidden"] == 48


def test_a_scaled_branch_carries_its_factor(tmp_path: Path) -> None:
    config = hf.GraniteConfig(**SMALL, intermediate_size=48, num_key_value_heads=2, residual_multiplier=0.3)
    found = look(saved(hf.GraniteForCausalLM(config), tmp_path))
    assert kinds(found) == [PRE]
    factors = [block.detail["factor"] for block in found.sides[0].layers[0].blocks if block.kind == "add"]
    assert factors == pytest.approx([0.3, 0.3], rel=1e-4)


def test_weights_that_did_not_run_stay_in_sight(checkpoint: Callable[[str], Path]) -> None:
    loaded = load_folder(checkpoint("llama"), model_id="it", revision="", device=CPU)
    loaded.model.extra = nn.Linear(3, 2)
    found = look(replace(loaded, n_parameters=loaded.n_parameters + 8))
    assert [(block.kind, block.path, block.parameters) for block in found.unused] == [("other", "extra", 8)]
    assert counted(found) == found.total


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_has_the_same_blocks(loaded: Loaded, precision: str) -> None:
    model = loaded("llama")
    found = look(replace(model, model=PRECISIONS[precision].convert(model.model), precision=precision))
    assert kinds(found) == [PRE] and counted(found) == found.total
    assert all(layer.gap == 0 for layer in found.sides[0].layers)


def test_our_own_models_are_drawn_by_the_same_rules() -> None:
    dates = scratch.load(CATALOG["dates"], CPU)
    found = architecture(dates, dates.prompt("5 March 2021"))
    assert kinds(found) == [POST, "attention add norm cross add norm feed_forward add norm"]
    assert [block.detail["scheme"] for side in found.sides for block in side.before if block.kind == "positions"] == [
        "sinusoidal"
    ] * 2
    assert counted(found) == found.total and found.d_model == 128
    assert [side.n_tokens for side in found.sides] == [12, 11]


@pytest.mark.parametrize("scheme", ["rope", "alibi", "none", "learned"])
def test_our_position_schemes_are_named(scheme: str) -> None:
    dates = scratch.load(CATALOG["dates"], CPU)
    model = build(LLAMA_LIKE, positions=scheme, vocab_size=dates.n_embeddings, max_seq_len=64)
    count = sum(one.numel() for one in model.parameters())
    found = look(replace(dates, model=model, family="decoder", n_parameters=count), "5 March")
    assert [block.detail["scheme"] for block in found.sides[0].before if block.kind == "positions"] == [scheme]
    assert counted(found) == count and kinds(found) == [PRE]


def test_the_model_is_left_as_it_was(loaded: Loaded) -> None:
    look(loaded("bert"))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded("bert").model.modules())


def test_a_model_without_a_list_of_layers_is_refused(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfviz.sources.architecture.layer_paths", lambda model: set())
    with pytest.raises(UnsupportedHere, match="layers in a list"):
        look(loaded("gpt2"))
