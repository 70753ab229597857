"""Bytes of a model by hand: each precision, the cache, live and kept activations, what fits."""

from dataclasses import replace

import pytest

from tfviz.inference.cache_size import CacheLayer, CacheShape
from tfviz.inference.memory_plan import (
    MOST,
    Forward,
    LayerShape,
    Load,
    Matrix,
    Model,
    Weights,
    counted,
    kept_bytes,
    largest_load,
    live_bytes,
    optimizer_bytes,
    plan,
    total,
    training_bytes,
)

LINEAR = Matrix("feed_forward", "linear", (32, 64), 2)
WEIGHTS = Weights((LINEAR, Matrix("norm", "plain", (64,))), fixed_bytes=8)
LAYER = LayerShape(64, 4, 64, 32, 32, 256, 128)
FORWARD = Forward(((LAYER, 2),), 64, 100)
MODEL = Model("made", WEIGHTS, FORWARD, CacheShape("made", "decoder", (CacheLayer("full", 2, 16, 16),) * 2))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("fp32", 4 * 4160 + 8),
        ("bf16", 2 * 4160 + 8),
        ("int8", 4096 + 4 * 64 + 4 * 64 + 8 + 4 * 64 * 64),  # levels, scales, norm, buffer, one rotation
        ("int8_weights", 4096 + 2 * 64 + 2 * 64 + 8),
        ("int4", 2048 + 4 * 64 * 2 + 2 * 64 + 8),
    ],
)
def test_weights_by_precision(precision: str, expected: int) -> None:
    assert WEIGHTS.nbytes(precision) == expected and WEIGHTS.parameters == 4160


def test_what_does_not_divide_into_groups_stays_a_float_and_shared_tables_are_int8() -> None:
    assert replace(LINEAR, shape=(32, 63), n=1).nbytes("int4") == 2 * 32 * 63
    assert replace(LINEAR, role="shared", n=1).nbytes("int4") == 2048 + 64
    assert replace(LINEAR, stays=("fp16",)).nbytes("fp16") == 4 * 4096


def test_equal_matrices_are_counted_together() -> None:
    assert counted([LINEAR, replace(LINEAR, n=3)]) == (replace(LINEAR, n=5),)


def test_running_is_weights_cache_and_the_largest_moment() -> None:
    load = Load(10, 2, precision="bf16")
    assert plan(MODEL, load)["cache"] == 2 * 2 * 10 * 2 * 32 * 2
    assert live_bytes(FORWARD, load) == 2 * 2 * 10 * (3 * 64 + 128 + 256)  # x, input, embedded; gate, two of hidden
    naive = replace(load, kernel="naive", context=1000)
    assert live_bytes(FORWARD, naive) == 2 * 2 * (1000 * (2 * 64 + 64 + 32 + 32) + 2 * 4 * 1000 * 1000)


def test_training_is_sixteen_bytes_a_parameter_and_activations() -> None:
    for precision, split in (("fp32", (4, 4, 8)), ("bf16", (2, 2, 12)), ("int4", (2, 2, 12))):
        parts = plan(MODEL, Load(10, training=True, precision=precision))
        assert (parts["gradients"], parts["optimizer"]) == (split[1] * 4160, split[2] * 4160)
        assert parts["weights"] == split[0] * 4160 + 8 and "cache" not in parts
    assert optimizer_bytes(Load(1, optimizer="sgd", precision="fp32")) == 0
    assert optimizer_bytes(Load(1, optimizer="sgd", precision="bf16")) == 4


def test_what_is_kept_for_the_backward_pass() -> None:
    load = Load(10, precision="fp32", training=True)
    layer = 4 * 10 * (2 * 2 * 64 + 64 + 64 + 32 + 32 + 256 + 2 * 128)
    end = 10 * (2 * 4 * 64 + 4 * 100)
    assert kept_bytes(FORWARD, load) == 2 * layer + end
    assert kept_bytes(FORWARD, replace(load, recompute=True)) == 2 * 4 * 10 * 64 + layer + end
    assert kept_bytes(FORWARD, replace(load, kernel="naive")) > kept_bytes(FORWARD, load) + 2 * 4 * 4 * 10 * 10 - 1
    assert training_bytes(FORWARD, load) == max(2 * layer + end + 4000, 2 * layer + end + 4 * (1000 + 6400) - 4000)


@pytest.mark.parametrize("training", [False, True])
def test_the_largest_load_fits_and_the_next_does_not(training: bool) -> None:
    load, memory = Load(10, training=training), 4_000_000
    context, batch = largest_load(MODEL, load, memory)
    for name, n in (("context", context), ("batch", batch)):
        assert total(MODEL, replace(load, **{name: n})) <= memory < total(MODEL, replace(load, **{name: n + 1}))
    assert largest_load(MODEL, load, 10) == (0, 0) and largest_load(MODEL, load, 1e40) == (MOST, MOST)
