"""What other caches do to attention, on hand-made arrays and on tiny real models."""

import numpy as np
import pytest
import torch

from tests.conftest import Loaded
from tfviz.inference.quantised_cache import BITS
from tfviz.introspection import cache_variants as variants
from tfviz.introspection.capture import capture
from tfviz.introspection.trace import AttentionStack, LayerAttention

TEXT = "The animal didn't cross the street because it was too tired"


def layer(
    n: int = 6, heads: int = 4, kv_heads: int = 2, dim: int = 8, seed: int = 0, causal: bool = True
) -> LayerAttention:
    make = np.random.default_rng(seed)
    query, key, value = (
        make.standard_normal((count, n, dim)).astype(np.float32) for count in (heads, kv_heads, kv_heads)
    )
    return LayerAttention(query, key, value, None, None, None, causal, None)


def stack_of(loaded: Loaded, name: str, kind: str = "self") -> AttentionStack:
    model = loaded(name)
    second = "the cat saw" if model.family == "encoder-decoder" else None
    return capture(model, model.prompt(TEXT, second), (TEXT, second), kernel="naive").stacks[kind]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("gpt2", "self"),
        ("llama", "self"),
        ("mistral", "self"),
        ("gemma2", "self"),
        ("t5", "decoder"),
        ("bart", "cross"),
    ],
)
def test_attending_again_gives_the_layers_own_weights(name: str, kind: str, loaded: Loaded) -> None:
    one = stack_of(loaded, name, kind).layers[1]
    np.testing.assert_allclose(variants.attend(one).weights, one.weights(), atol=1e-6)


def test_a_long_sentence_is_compared_at_its_last_queries() -> None:
    one = layer(n=variants.QUERIES + 9)
    seen = variants.attend(one)
    assert seen.weights.shape[1] == variants.QUERIES
    np.testing.assert_allclose(seen.weights[1], one.weights(1)[0, -variants.QUERIES :], atol=1e-6)


@pytest.mark.parametrize(
    "heads, kv, counts", [(9, 3, [9, 3, 1]), (12, 12, [12, 6, 4, 3, 2, 1]), (8, 2, [8, 4, 2, 1]), (6, 1, [6, 3, 2, 1])]
)
def test_heads_are_spread_or_pooled_evenly(heads: int, kv: int, counts: list[int]) -> None:
    assert variants.head_counts(heads, kv) == counts


def test_pooling_is_the_mean_of_a_group_and_spreading_repeats() -> None:
    x = np.arange(4, dtype=np.float32).reshape(4, 1, 1)
    assert variants.pooled(x, 2).ravel().tolist() == [0.5, 2.5]
    assert variants.pooled(x, 8).ravel().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_spreading_changes_nothing_and_pooling_of_equal_heads_neither() -> None:
    one = layer()
    assert variants.pooling_error(one, 4) == pytest.approx(0, abs=1e-6)
    assert variants.pooling_error(one, 1) > 0.1
    same = LayerAttention(one.query, one.key[:1].repeat(2, 0), one.value[:1].repeat(2, 0), None, None, None, True, None)
    assert variants.pooling_error(same, 1) == pytest.approx(0, abs=1e-6)


def test_a_window_holds_the_newest_keys_and_the_first_ones_if_told() -> None:
    assert variants.held_keys(6, 4, 2).tolist() == [False, False, False, True, True, False]
    assert variants.held_keys(6, 4, 2, sinks=1).tolist() == [True, False, False, True, True, False]
    assert variants.held_keys(6, 1, 9).tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("sinks", [0, 1, 3, 99])
def test_what_a_window_loses_is_the_sum_over_the_keys_it_does_not_hold(sinks: int) -> None:
    weights = layer(n=9).weights(1)[0]
    windows = [1, 2, 5, 9, 30]
    for window, lost in zip(windows, variants.outside(weights, windows, sinks), strict=True):
        for query in range(9):
            held = variants.held_keys(9, query, window, sinks)
            assert lost[query] == pytest.approx(weights[query][~held].sum(), abs=1e-6)


def test_losing_keys_is_what_attention_over_the_rest_gives() -> None:
    one = layer(n=9, heads=1, kv_heads=1)
    errors = variants.windowed_error(one.weights(0)[0], one.value[0], 3, 1)
    blocked = ~variants.held_keys(9, np.arange(9), 3, 1)
    cut = LayerAttention(one.query, one.key, one.value, blocked[None], None, None, True, None)
    exact, found = (variants.attend(each).output[0] for each in (one, cut))
    expected = (exact - found).norm(dim=-1) / exact.norm(dim=-1)
    np.testing.assert_allclose(errors, expected, atol=1e-5)
    assert errors[:4].max() < 1e-6  # nothing is lost yet


@pytest.mark.parametrize("way", variants.GROWTHS)
def test_there_is_room_for_every_step(way: str) -> None:
    found = variants.growth(way, 10, 100, 64)
    length = 10 + np.arange(101)
    assert (found.allocated >= length).all() and (np.diff(found.copied) >= 0).all()


def test_how_often_each_way_copies() -> None:
    exact, doubling, static = (variants.growth(way, 10, 100, 200) for way in ("exact", "doubling", "static"))
    assert exact.copied[-1] == sum(range(10, 110)) and exact.allocated[-1] == 110
    assert doubling.allocated.max() == 160 and doubling.copied[-1] == 10 + 20 + 40 + 80 < 2 * 110
    assert static.copied.max() == 0 and set(static.allocated) == {200}


def test_growing_is_measured_for_both_ways_at_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "LENGTHS", (8, 16))
    found = variants.growth_times(2, 8, 4, "cpu")
    assert set(found) == {(way, n) for way in ("exact", "static") for n in (8, 16)}
    assert all(0 < took.low <= took.median <= took.high for took in found.values())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_quantised_layers_err_little_and_less_with_more_bits(name: str, bits: int, loaded: Loaded) -> None:
    one = stack_of(loaded, name).layers[0]
    for axes in variants.AXES:
        found = variants.quantised(one, 1, bits, axes)
        assert 0 < found.key_error < 0.15 and 0 < found.value_error < 0.15 and found.kl >= 0
        assert found.nbytes < found.fp32_bytes
        if bits == 8:
            assert found.output_error < variants.quantised(one, 1, 4, axes).output_error


def test_all_layers_have_what_each_has() -> None:
    layers = [layer(seed=1), layer(seed=2)]
    errors = variants.output_errors(layers, 4)
    expected = [[variants.quantised(one, 0, 4, axes).output_error for one in layers] for axes in variants.AXES]
    np.testing.assert_allclose(errors, expected, rtol=1e-6)
    pooled = variants.pooling_errors(layers, [1])
    np.testing.assert_allclose(pooled, [[variants.pooling_error(one, 1) for one in layers]], rtol=1e-6)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_cross_keys_are_written_once(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    prompt = model.prompt(TEXT, "the cat saw")
    with torch.inference_mode():
        seen = variants.cross_twice(model, prompt)
    assert seen.change == 0 and seen.n_source == prompt.n_tokens and seen.d_model == 32
    layer_ = stack_of(loaded, name, "cross").layers[0]
    n_layers = stack_of(loaded, name, "cross").n_layers
    assert seen.cross_bytes == n_layers * (layer_.key.nbytes + layer_.value.nbytes)
