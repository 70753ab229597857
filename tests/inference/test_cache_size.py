"""Bytes of a cache from numbers alone: what each kind of layer holds, and the largest context that fits."""

from dataclasses import replace

import pytest

from tfviz.inference.cache_size import CACHE_PRECISIONS, CacheLayer, CacheShape, cache_bytes, largest_context

FULL = CacheLayer("full", 2, 8, 8)
SLIDING = CacheLayer("sliding", 2, 8, 8, window=5)
CROSS = CacheLayer("cross", 2, 8, 8)
FP32, FP16, INT8, INT4 = (CACHE_PRECISIONS[name] for name in ("fp32", "fp16", "int8", "int4"))


def shape(*layers: CacheLayer) -> CacheShape:
    return CacheShape("made", "decoder", layers)


def test_a_token_of_a_full_layer_takes_key_and_value_of_each_head() -> None:
    assert cache_bytes(shape(FULL), 1, 1, FP32) == 2 * (8 + 8) * 4
    assert cache_bytes(shape(FULL, FULL), 10, 3, FP16) == 3 * 10 * 2 * 2 * (8 + 8) * 2


@pytest.mark.parametrize("context, held", [(1, 1), (4, 4), (5, 4), (1000, 4)])
def test_a_window_holds_all_but_the_token_that_comes_next(context: int, held: int) -> None:
    assert SLIDING.held(context) == held


def test_cross_attention_depends_on_the_source_only() -> None:
    assert cache_bytes(shape(CROSS), 7, 1, FP32, source=3) == cache_bytes(shape(CROSS), 900, 1, FP32, source=3)
    assert cache_bytes(shape(CROSS), 7, 1, FP32, source=3) == 3 * 2 * 16 * 4


def test_layers_that_share_or_hold_a_state_take_nothing() -> None:
    assert cache_bytes(shape(CacheLayer("shared"), CacheLayer("state")), 100) == 0


@pytest.mark.parametrize("dim, int8, int4", [(64, 64 + 8, 32 + 8), (32, 32 + 4, 16 + 4), (40, 40 + 8, 20 + 8)])
def test_quantised_vectors_carry_their_scales_and_zero_points(dim: int, int8: int, int4: int) -> None:
    assert (INT8.vector_bytes(dim), INT4.vector_bytes(dim)) == (int8, int4)


def test_smollm2_takes_what_facts_say() -> None:
    smollm2 = shape(*[CacheLayer("full", 3, 64, 64)] * 30)
    assert cache_bytes(smollm2, 1, 1, FP32) == 46_080


@pytest.mark.parametrize("layers", [(FULL,), (FULL, SLIDING), (SLIDING, FULL, CROSS)])
@pytest.mark.parametrize("memory", [0, 100, 12_345, 10**9])
def test_the_largest_context_fits_and_the_next_does_not(layers: tuple[CacheLayer, ...], memory: int) -> None:
    made = shape(*layers)
    most = largest_context(made, memory, 2, FP16, source=3)
    assert most is not None
    assert most == 0 or cache_bytes(made, most, 2, FP16, 3) <= memory
    assert cache_bytes(made, most + 1, 2, FP16, 3) > memory


def test_windows_alone_fit_for_ever_once_they_fit() -> None:
    made = shape(SLIDING)
    need = cache_bytes(made, 4)
    assert largest_context(made, need) is None and largest_context(made, need - 1) == 3
    assert not made.grows and shape(FULL, SLIDING).grows


def test_kinds_keep_their_order_and_count() -> None:
    made = shape(SLIDING, FULL, SLIDING)
    assert made.kinds == {SLIDING: 2, FULL: 1} and list(made.kinds) == [SLIDING, FULL]
    assert replace(made, layers=(FULL,)).kinds == {FULL: 1}
