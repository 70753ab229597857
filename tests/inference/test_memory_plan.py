"""Bytes of a model by hand: each precision, the cache, live and kept activations, what fits."""

from dataclasses import replace

import pytest

from tfviz.inference.cache_size import CacheLayer, CacheShape
from tfviz.inference.memory_activations import kept_bytes, live_bytes, training_bytes
from tfviz.inference.memory_plan import MOST, largest_load, optimizer_bytes, plan, total
from tfviz.inference.memory_shapes import Forward, LayerShape, Load, Matrix, Model, Weights, counted

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
    assert training_bytes(FORWARD, load) == max(2 * layer + end + 8000, 2 * layer + end + 4 * (1000 + 6400) - 4000)


def test_a_written_out_activation_is_counted_with_its_steps() -> None:
    plain = replace(LAYER, widened=128)
    written, load = replace(plain, bent=4, alive=4), Load(10, precision="fp32")
    before, after = (Forward(((one, 2),), 64, 0) for one in (plain, written))
    assert live_bytes(after, load) - live_bytes(before, load) == 4 * 10 * 2 * 128
    assert kept_bytes(after, load) - kept_bytes(before, load) == 2 * 4 * 10 * 3 * 128


@pytest.mark.parametrize("kernel", ["naive", "flash"])
def test_a_bias_is_there_once_for_all_rows_and_its_distances_before_it(kernel: str) -> None:
    layer = replace(LAYER, biased=True, stack="decoder", cross=True)
    with_, without = (Forward(((one, 2),), 64, 0) for one in (layer, replace(layer, biased=False)))
    one, more = (Load(1000, rows, source=10, precision="fp32", kernel=kernel) for rows in (1, 3))
    bias = 4 * 4 * 1000 * 1010
    masked = 4 * 4 * 1000 * 1000 + 1000 * 1000 if kernel == "flash" else 0
    if kernel == "naive":
        assert live_bytes(with_, one) - live_bytes(without, one) == bias
        assert live_bytes(with_, more) - live_bytes(without, more) == bias
    else:  # whichever is larger: the distances as whole numbers, or the biases
        entered = 4 * (1000 * (2 * 64 + 64 + 32 + 32) + 10 * 64)
        assert live_bytes(with_, one) == max(entered + 41 * 1000**2, entered + 4 * 1000 * 64 + bias + masked)
    training = replace(one, training=True)
    weights = 4 * 4 * 1000 * 1010  # the flash kernel has no gradient for a bias; naive: a second copy of the weights
    extra = 0 if kernel == "naive" else 2 * 4 * 1000 * 64  # the output before rows of nothing are zeros
    assert kept_bytes(with_, training) - kept_bytes(without, training) == 2 * (weights + extra) + 8 * 1000**2


@pytest.mark.parametrize("training", [False, True])
def test_the_largest_load_fits_and_the_next_does_not(training: bool) -> None:
    load, memory = Load(10, training=training), 4_000_000
    context, batch = largest_load(MODEL, load, memory)
    for name, n in (("context", context), ("batch", batch)):
        assert total(MODEL, replace(load, **{name: n})) <= memory < total(MODEL, replace(load, **{name: n + 1}))
    assert largest_load(MODEL, load, 10) == (0, 0) and largest_load(MODEL, load, 1e40) == (MOST, MOST)
