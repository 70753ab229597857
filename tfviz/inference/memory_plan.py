"""How many bytes a model takes, from its shapes alone: to run it and to train it, before anything is loaded.

    inference = weights + cache + activations
    training  = weights + gradients + optimizer + activations

    weights       one matrix at a time, as tfviz converts it (tfviz.inference.precision)
    activations   running: the most that is alive at once; training: what the backward pass will read
    optimizer     Adam: m and v in FP32; with 16-bit weights an FP32 copy of the weights beside them

With Adam both ways of training come to 16 bytes a parameter: 4 + 4 + 8 in FP32, 2 + 2 + 12 in mixed precision
(ZeRO, arXiv 1910.02054, section 3.1).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes
from tfviz.inference.memory_activations import live_bytes, training_bytes
from tfviz.inference.memory_shapes import Load, Model

PARTS = ("weights", "cache", "activations", "gradients", "optimizer")
MOST = 1 << 40  # of tokens or rows: beyond this anything fits


def plan(model: Model, load: Load) -> dict[str, int]:
    """Bytes of each of PARTS that this load has."""
    if not load.training:
        cached = cache_bytes(model.cache, load.context, load.batch, CACHE_PRECISIONS[load.cache], load.source)
        weights = model.weights.nbytes(load.precision)
        return {"weights": weights, "cache": cached, "activations": live_bytes(model.forward, load)}
    load = replace(load, precision=load.trained)
    count = model.weights.parameters
    return {
        "weights": model.weights.nbytes(load.precision),
        "gradients": count * load.element,
        "optimizer": count * optimizer_bytes(load),
        "activations": training_bytes(model.forward, load),
    }


def optimizer_bytes(load: Load) -> int:
    """A parameter's, beside its weight and its gradient."""
    states = 8 if load.optimizer == "adam" else 0  # m and v
    master = 0 if load.trained == "fp32" else 4
    return states + master


def total(model: Model, load: Load) -> int:
    return sum(plan(model, load).values())


def largest_load(model: Model, load: Load, memory: float) -> tuple[int, int]:
    """(context, batch): how far either may grow, the other as it is, within `memory` bytes; MOST: without end."""

    return (
        _most_context(model, replace(load, context=1, source=min(load.source, 1)), memory),
        _most_rows(model, replace(load, batch=1), memory),
    )


@lru_cache(maxsize=512)  # a page asks for the same rows again with every change of one control
def _most_context(model: Model, load: Load, memory: float) -> int:
    return _largest(lambda n: total(model, replace(load, context=n, source=n if load.source else 0)), memory)


@lru_cache(maxsize=512)
def _most_rows(model: Model, load: Load, memory: float) -> int:
    return _largest(lambda n: total(model, replace(load, batch=n)), memory)


def _largest(nbytes: Callable[[int], int], memory: float) -> int:
    """The largest n with nbytes(n) <= memory, for bytes that never fall; 0: not even one."""
    if nbytes(MOST) <= memory:
        return MOST
    low, high = 0, MOST  # `low` fits (or is 0), `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if nbytes(middle) <= memory else (low, middle)
    return low
