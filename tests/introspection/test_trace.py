"""A trace: weights computed when they are looked at, from arrays that are shared and counted once."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from tests.conftest import Loaded
from tfviz.introspection.capture import capture
from tfviz.introspection.trace import AttentionStack, LayerAttention, Trace
from tfviz.model.attention import ScoreRule, attention_weights
from tfviz.sources.tokens import Token

TEXT = "the cat saw the other cat near the door"


def layer(n_query: int = 5, n_key: int = 5, **changes: Any) -> LayerAttention:
    random = default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32)

    plain: dict[str, Any] = dict(
        query=numbers(4, n_query, 8),
        key=numbers(2, n_key, 8),
        value=numbers(2, n_key, 6),
        mask=None,
        bias=None,
        scale=None,
        causal=False,
        softcap=None,
    )
    return LayerAttention(**plain | changes)


def blocked_at_random(heads: int, n_query: int = 5, n_key: int = 5) -> np.ndarray:
    mask = default_rng(1).random((heads, n_query, n_key)) < 0.4
    mask[..., 0] = False
    return mask


BIAS = default_rng(2).standard_normal((4, 5, 5), dtype=np.float32)
LAYERS = {
    "plain": layer(),
    "causal": layer(causal=True),
    "causal over a cache": layer(n_query=2, causal=True),
    "one mask": layer(mask=blocked_at_random(1)),
    "a mask of each head": layer(mask=blocked_at_random(4), causal=True),
    "a bias of each head": layer(bias=BIAS, scale=1.0),
    "one bias": layer(bias=BIAS[:1], causal=True),
}


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_one_head_is_that_head_of_all(attention: LayerAttention) -> None:
    every = attention.weights()
    for head in range(4):
        alone = attention.weights(head)
        assert alone.shape == (1, *every.shape[1:])
        np.testing.assert_allclose(alone[0], every[head], atol=1e-6)


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_weights_are_those_of_the_kernel(attention: LayerAttention) -> None:
    def batched(array: np.ndarray | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array)[None]

    query, key = batched(attention.query), batched(attention.key)
    assert query is not None and key is not None
    rule = ScoreRule(attention.scale, attention.causal, attention.softcap, batched(attention.bias))
    expected = attention_weights(query, key, batched(attention.mask), rule)[0].numpy()
    np.testing.assert_allclose(attention.weights(), expected, atol=1e-7)


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_blocked_cells_are_exactly_the_zeros(attention: LayerAttention) -> None:
    weights = attention.weights()
    np.testing.assert_array_equal(np.broadcast_to(attention.blocked, weights.shape), weights == 0)


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_both_kernels_agree_on_each_head(attention: LayerAttention) -> None:
    for head in range(4):
        assert 0 <= attention.kernel_difference(head, attention.weights(head)[0]) < 2e-6


def test_the_kernel_difference_is_measured_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfviz.model import attention

    monkeypatch.setitem(attention.ATTENTION_KERNELS, "flash", lambda q, k, v, *_: (v[:, :1] + 1, None))
    assert layer().kernel_difference(0, layer().weights(0)[0]) > 0.1


# ---- stacks


def stack(layers: dict[int, LayerAttention], kind: str = "self", **changes: Any) -> AttentionStack:
    n_query, n_key = layers[min(layers)].query.shape[1], layers[min(layers)].key.shape[1]
    tokens = [Token(i, "a", "a") for i in range(max(n_query, n_key))]
    return AttentionStack(kind, 9, layers, tuple(tokens[:n_query]), tuple(tokens[:n_key]), None, **changes)


def test_a_stack_counts_query_and_key_heads() -> None:
    assert (stack({0: layer()}).n_heads, stack({0: layer()}).n_kv_heads) == (4, 2)


def test_causal_is_read_from_the_mask_as_well_as_from_the_rule() -> None:
    triangle = np.triu(np.ones((1, 5, 5), dtype=bool), k=1)
    assert stack({0: layer(causal=True)}).causal
    assert stack({0: layer(mask=triangle)}).causal
    assert not stack({0: layer()}).causal
    assert not stack({0: layer(mask=triangle), 1: layer(mask=blocked_at_random(1))}).causal
    assert not stack({0: layer(mask=triangle)}, kind="cross").causal


def test_a_mask_shared_by_layers_is_counted_once() -> None:
    mask = blocked_at_random(1)
    arrays = sum(array.nbytes for array in (layer().query, layer().key, layer().value))
    one, two = stack({0: layer(mask=mask)}), stack({0: layer(mask=mask), 1: layer(mask=mask)})
    assert one.nbytes == arrays + mask.nbytes
    assert two.nbytes == 2 * arrays + mask.nbytes


# ---- traces


@pytest.fixture(scope="module")
def trace(loaded: Loaded) -> Trace:
    model = loaded("llama")
    return capture(model, model.prompt(TEXT), (TEXT, None))


def test_attention_is_the_weights_of_each_layer(trace: Trace) -> None:
    layers = trace.stacks["self"].layers
    array = trace.attention["self"]
    assert array.shape == (3, 4, len(trace.tokens), len(trace.tokens)) and array.dtype == np.float32
    for i in range(3):
        np.testing.assert_array_equal(array[i], layers[i].weights())


def test_attention_is_computed_when_first_asked_for_and_then_kept(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, computed = loaded("t5"), []
    weights = LayerAttention.weights

    def counting(self: LayerAttention, head: int | None = None) -> np.ndarray:
        computed.extend([1] if head is None else [])
        return weights(self, head)

    monkeypatch.setattr(LayerAttention, "weights", counting)
    trace = capture(model, model.prompt(TEXT, "the door"), (TEXT, "the door"))
    assert list(trace.attention) == ["encoder", "decoder", "cross"] and len(trace.attention) == 3
    assert not computed
    assert trace.attention["encoder"] is trace.attention["encoder"]
    assert len(computed) == 3
    assert trace.attention["cross"].shape[0] == 2 and len(computed) == 5


def test_an_attention_the_model_does_not_have_is_a_key_error(trace: Trace) -> None:
    with pytest.raises(KeyError):
        trace.attention["cross"]
    assert "cross" not in trace.attention


def test_tokens_and_ids_are_one_a_position(trace: Trace) -> None:
    assert len(trace.tokens) == len(trace.token_ids) == trace.n_tokens_typed
    assert "".join(trace.tokens) == TEXT.replace(" ", "")


def test_a_trace_tells_where_it_came_from_and_what_it_took(trace: Trace) -> None:
    assert (trace.model, trace.family, trace.precision, trace.revision) == ("llama", "decoder", "fp32", "local")
    assert trace.cost.seconds > 0 and trace.cost.device == "cpu" and trace.cost.weight_bytes > 0


def test_a_trace_is_linear_in_the_length_of_the_text(loaded: Loaded) -> None:
    model = loaded("llama")
    short, long = (capture(model, model.prompt("cat " * n), ("", None)) for n in (20, 80))
    assert long.nbytes <= 4.5 * short.nbytes
