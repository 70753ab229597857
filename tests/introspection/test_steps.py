"""The stages of one head: exact on hand-made arrays, and on real models equal to what they computed themselves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints import ARCHITECTURES
from tests.closeness import MODEL, difference
from tests.conftest import Loaded
from tests.model import tiny
from tfviz.config import TransformerConfig
from tfviz.inference.precision import PRECISIONS
from tfviz.inference.rounding import layers
from tfviz.introspection import steps
from tfviz.introspection.anatomy import examine
from tfviz.introspection.capture import capture
from tfviz.introspection.trace import LayerAttention
from tfviz.model.positions import POSITIONS
from tfviz.model.transformer import Transformer
from tfviz.sources.scratch import ScratchModel, byte_pair_tokenizer

TEXT, SECOND = "The animal didn't cross the street because it was too tired", "the cat saw"


def layer(**changes: Any) -> LayerAttention:
    """Two heads over one k and v, two positions, d_k = 4: q . k is 2, 0 / 0, 4."""
    query = np.zeros((2, 2, 4), dtype=np.float32)
    query[:, 0, 0], query[:, 1, 1] = 1, 2
    key = np.zeros((1, 2, 4), dtype=np.float32)
    key[0, 0, 0] = key[0, 1, 1] = 2
    value = np.array([[[1, 0], [0, 1]]], dtype=np.float32)
    made = LayerAttention(query, key, value, None, None, None, False, None)
    return replace(made, **changes)


def test_the_stages_follow_the_formula() -> None:
    found = steps.head_steps(layer(causal=True), 1, [0, 1])
    assert found.raw.tolist() == [[2, 0], [0, 4]] and found.scale == 0.5
    assert found.scaled.tolist() == [[1, 0], [0, 2]]
    assert found.blocked.tolist() == [[False, True], [False, False]]
    assert found.scores.tolist() == [[1, -np.inf], [0, 2]]
    assert found.weights[0].tolist() == [1, 0] and found.weights[1, 1] == pytest.approx(1 / (1 + np.exp(-2)))
    assert found.output[0].tolist() == [1, 0] and found.output[1].tolist() == found.weights[1].tolist()
    assert found.capped is found.bias is found.biased is None


def test_soft_cap_and_bias_are_stages_of_their_own_in_the_models_order() -> None:
    bias = np.array([[[0.0, 1.0], [2.0, 0.0]]], dtype=np.float32)
    found = steps.head_steps(layer(scale=1.0, softcap=3.0, bias=bias), 0, [1])
    assert found.scaled.tolist() == [[0, 4]] and found.bias is not None and found.bias.tolist() == [[2, 0]]
    assert found.capped == pytest.approx(np.array([[0, 3 * np.tanh(4 / 3)]]), rel=1e-6)
    assert found.scores == pytest.approx(np.array([[2, 3 * np.tanh(4 / 3)]]), rel=1e-6)


def test_a_bias_of_zeros_is_no_stage() -> None:
    assert steps.head_steps(layer(bias=np.zeros((1, 2, 2), dtype=np.float32)), 0, [0]).bias is None


def test_a_row_with_nothing_allowed_has_zero_weights() -> None:
    found = steps.head_steps(layer(mask=np.array([[[True, True], [False, False]]])), 0, [0, 1])
    assert found.weights[0].tolist() == [0, 0] and found.output[0].tolist() == [0, 0]
    assert found.weights[1].sum() == pytest.approx(1)


def test_grouped_heads_know_with_whom_they_share() -> None:
    eight = layer(query=np.zeros((8, 2, 4), dtype=np.float32), key=np.zeros((2, 2, 4), dtype=np.float32))
    assert [steps.kv_head(eight, head) for head in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert steps.sharing(eight, 5) == [4, 5, 6, 7]


def test_what_changed_is_told_from_the_numbers() -> None:
    draw = np.random.default_rng(0)
    before = draw.standard_normal((5, 8)).astype(np.float32)
    turned = before.copy()
    angle = np.arange(5)[:, None] * np.array([1, 0.1, 0.01, 0.001])
    turned[:, :4] = before[:, :4] * np.cos(angle) - before[:, 4:] * np.sin(angle)
    turned[:, 4:] = before[:, 4:] * np.cos(angle) + before[:, :4] * np.sin(angle)
    assert steps.what_changed(before, before + 1e-6) == "same"
    assert steps.what_changed(before, before * 0.25) == "scaled"
    assert steps.what_changed(before, turned) == steps.what_changed(before, turned * 1.2) == "rotated"
    assert steps.what_changed(before, before / np.linalg.norm(before, axis=1, keepdims=True)) == "changed"


def test_the_largest_keys_stand_in_the_texts_order() -> None:
    assert steps.largest_keys(np.array([0.1, 0.5, 0.0, 0.4]), 2) == [1, 3]
    assert steps.largest_keys(np.array([0.1, 0.9]), 2) == [0, 1]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_computed_here_is_what_the_model_computed(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    second = SECOND if model.family == "encoder-decoder" else None
    prompt = model.prompt(TEXT, second)
    trace = capture(model, prompt, (TEXT, second), kernel="naive")
    anatomy = examine(model, prompt)
    for kind, stack in trace.stacks.items():
        for number, seen in stack.layers.items():
            rows = range(len(stack.query_tokens))
            for head in range(stack.n_heads):
                found = steps.head_steps(seen, head, rows)
                assert difference(found.weights, seen.weights(head)[0]) < MODEL
            whole = steps.all_heads(seen, anatomy.attentions[kind, number], rows)
            assert difference(whole.joined, whole.model_joined) < MODEL
            assert difference(whole.output, whole.model_output) < MODEL


@pytest.mark.parametrize("precision, allowed", [("bf16", layers("bf16")), ("fp16", layers("fp16")), ("int8", 5e-2)])
@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_other_precisions_agree_within_what_the_page_allows(
    name: str, precision: str, allowed: float, loaded: Loaded
) -> None:
    exact = loaded(name)
    model = replace(exact, model=PRECISIONS[precision].convert(exact.model), precision=precision)
    prompt = model.prompt(TEXT, SECOND if model.family == "encoder-decoder" else None)
    trace, anatomy = steps.naive_pass(model, prompt), examine(model, prompt)
    for kind, stack in trace.stacks.items():
        whole = steps.all_heads(stack.layers[1], anatomy.attentions[kind, 1], range(len(stack.query_tokens)))
        assert difference(whole.output, whole.model_output) < allowed


@pytest.mark.parametrize("positions", POSITIONS)
def test_our_own_models_agree_under_every_position_scheme(positions: str) -> None:
    model = ours(replace(tiny.DECODER, vocab_size=300, max_seq_len=64, positions=positions))
    prompt = model.prompt("the cat")
    stack = capture(model, prompt, ("the cat", None)).stacks["self"]
    seen = examine(model, prompt).attentions["self", 1]
    whole = steps.all_heads(stack.layers[1], seen, range(len(stack.query_tokens)))
    np.testing.assert_allclose(whole.output, whole.model_output, atol=1e-5)
    before, after = steps.split(seen.query, 4, 2), stack.layers[1].query[2]
    assert steps.what_changed(before, after) == ("rotated" if positions == "rope" else "same")
    assert (steps.head_steps(stack.layers[1], 2, [0]).bias is not None) == (positions == "alibi")


def ours(config: TransformerConfig) -> ScratchModel:
    torch.manual_seed(1)
    return ScratchModel(
        id="ours",
        label="ours",
        revision="",
        family=config.family,
        precision="fp32",
        device=torch.device("cpu"),
        model=Transformer(config).eval().requires_grad_(False),
        tokenizer=byte_pair_tokenizer([], config.vocab_size),
        token_limit=config.max_seq_len,
        has_logits=True,
        n_parameters=0,
        weight_bytes=0,
        random=True,
    )
