"""The sweep over contexts: shapes, context lengths, and what is read off the measured points."""

import numpy as np
import pytest

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.errors import TfvizError
from tfviz.inference.measure import Latency
from tfviz.inference.work import AttentionShape, DecoderShape, with_cache, without_cache
from tfviz.introspection import cache_cost
from tfviz.introspection.cache_cost import (
    Point,
    context_lengths,
    decoder_shape,
    half_attention,
    prospect,
    sweep,
    totals,
)
from tfviz.introspection.growth import between, crossing, fit
from tfviz.model.attention_call import AttentionCall

TEXT = "The animal didn't cross the street because it was too tired"
WRITERS = [name for name, (_, _, family) in ARCHITECTURES.items() if family != "encoder"]
SHAPE = DecoderShape((AttentionShape(2, 1, 4, 4, projections=96),), (), feed_forward=256, head=128)


def took(seconds: float) -> Latency:
    return Latency.of([seconds] * 3)


def point(n: int, cached: float, uncached: float) -> Point:
    works = with_cache(SHAPE, n), without_cache(SHAPE, n)
    return Point(n, took(cached), took(uncached), *works, cache_bytes=n * SHAPE.cached("own"), cross_bytes=0)


@pytest.mark.parametrize("name", WRITERS)
def test_the_sweep_measures_every_context_of_every_model(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    prompt = model.prompt(TEXT, "the cat saw" if model.family == "encoder-decoder" else None)
    ahead = prospect(model, prompt)
    shape, lengths, weights = ahead.shape, ahead.lengths, ahead.weights
    assert ahead.limit is None or lengths[-1] < ahead.limit
    found = list(sweep(model, prompt, "naive", shape))
    parts = [one.part for one in found]
    assert parts == sorted(parts) and parts[-1] == 1 and weights == model.weight_bytes
    last = found[-1]
    assert last.lengths == lengths == tuple(one.n for one in last.points) and last.left_out is None
    for one in last.points:
        own = sum(a.cached(4) * min(one.n, (a.window or one.n + 1) - 1) for a in shape.own)
        assert one.cache_bytes - one.cross_bytes == own
        assert one.cross_bytes == shape.cached("cross") * (prompt.n_tokens if shape.cross else 0)
        assert one.cached.median > 0 and one.uncached.median > 0


def test_contexts_are_powers_of_two_up_to_what_the_model_has_positions_for(loaded: Loaded) -> None:
    model = loaded("llama")  # 128 positions
    assert context_lengths(model, 128) == (8, 16, 32, 64, 118)
    assert context_lengths(model, 75) == (8, 16, 32, 64)
    assert context_lengths(model, 14) == (4,)


def test_a_context_that_would_take_too_long_is_left_out(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_cost, "BUDGET", 0.0)
    model = loaded("llama")
    prompt = model.prompt(TEXT)
    last = list(sweep(model, prompt, "naive", decoder_shape(model, prompt)))[-1]
    assert [one.n for one in last.points] == [8] and last.left_out == 16 and last.part == 1


def test_the_shapes_are_the_models_own(loaded: Loaded) -> None:
    model = loaded("qwen3")  # head_dim 16 is not hidden_size / heads
    shape = decoder_shape(model, model.prompt(TEXT))
    assert shape.own == (AttentionShape(4, 2, 16, 16, projections=2 * 32 * 64 + 2 * 32 * 32),) * 3
    assert (shape.cross, shape.feed_forward, shape.head) == ((), 3 * 3 * 32 * 48, 32 * 400)
    pair = loaded("t5")
    shape = decoder_shape(pair, pair.prompt(TEXT, "the cat"))
    assert shape.cross == (AttentionShape(4, 4, 8, 8, projections=2 * 32 * 32, memory=2 * 32 * 32),) * 2
    assert (
        loaded("mistral").window("self", 0)
        == decoder_shape(loaded("mistral"), loaded("mistral").prompt(TEXT)).own[0].window
    )


def test_a_model_that_cannot_write_says_so(loaded: Loaded) -> None:
    with pytest.raises(TfvizError, match="writes no text"):
        prospect(loaded("bert"), loaded("bert").prompt(TEXT))


def test_nothing_is_run_of_more_than_a_few_tokens_to_read_the_shapes(loaded: Loaded) -> None:
    model, seen = loaded("llama"), []
    cut = cache_cost._shortened(model, model.prompt(TEXT))
    model.run(cut, AttentionCall("naive", lambda record: seen.append(record.query.shape[2])))
    assert set(seen) == {1}


# ---- what is read off the points


def test_an_exponent_is_found_over_the_upper_half() -> None:
    n = [8, 16, 32, 64, 128, 256]
    line = fit(n, [9.0, 9.0, 9.0, *(3e-3 * one**1.5 for one in n[3:])])
    assert line is not None and line.used == (64, 128, 256)
    assert (line.exponent, line.factor) == (pytest.approx(1.5), pytest.approx(3e-3))
    few = fit([8, 16, 32, 54], [9.0, 16.0, 32.0, 54.0])
    assert few is not None and few.used == (16, 32, 54) and few.exponent == pytest.approx(1)
    assert fit([8, 16], [1.0, 2.0]) is None and fit([8, 16, 32], [0.0, 1.0, 2.0]) is None


def test_values_between_two_contexts_lie_on_a_power() -> None:
    np.testing.assert_allclose(between([4, 16], [2.0, 8.0], np.array([4, 8, 16, 32])), [2, 4, 8, 8])


def test_the_curves_cross_where_the_ratio_passes_one() -> None:
    assert crossing([8, 32], [2.0, 2.0], [1.0, 4.0]) == pytest.approx(16)
    assert crossing([8, 32], [1.0, 1.0], [2.0, 4.0]) is None  # ahead from the first one
    assert crossing([8, 32], [3.0, 9.0], [2.0, 4.0]) is None  # never ahead


def test_a_whole_text_is_the_sum_of_its_steps() -> None:
    sums = totals([point(2, 1.0, 2.0), point(4, 1.0, 4.0)])
    assert sums["cached"] == pytest.approx(3) and sums["uncached"] == pytest.approx(2 + 3 + 4)


def test_half_of_the_work_is_attention_where_the_formula_says() -> None:
    # 96 + 256 + 128 = 480 and 2 x 8 = 16 a key: from n = 30 on
    assert half_attention(lambda n: with_cache(SHAPE, n)) == 30
    of_it = without_cache(SHAPE, half_attention(lambda n: without_cache(SHAPE, n)) or 0)
    assert 2 * (of_it.scores + of_it.values) >= of_it.total
    flat = DecoderShape((AttentionShape(2, 1, 4, 4, 96, window=4),), (), 256, 128)
    assert half_attention(lambda n: with_cache(flat, n)) is None
