"""Mixed precision: what becomes of the real gradients of the dates model when they are cast to 16 bits.

    FP16: 5 bits of exponent, 10 of fraction   below 2^-25 a value becomes 0, above 65,504 it becomes infinite
    BF16: 8 bits of exponent, 7 of fraction    the range of FP32, an eighth of FP16's resolution

Loss scaling multiplies the loss, and so every gradient, by 2^k before the cast and divides by it afterwards in FP32.
Source: Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float

from tfviz.registry import choose
from tfviz.training.experiments.subjects import batch_of, dates_model, dates_task, loss_of

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
MODELS = {"fresh": False, "trained": True}
BATCH = 64
BIN = 0.25  # decades


@dataclass(frozen=True)
class Limits:
    """The positive values of a format."""

    smallest: float  # subnormal
    normal: float  # the smallest with all its digits
    largest: float
    half_step: float  # largest relative error of rounding a normal value


@dataclass(frozen=True)
class Cast:
    """What casting made of gradients, counted."""

    n: int
    zero: int
    subnormal: int
    infinite: int
    too_small: int  # at most half the format's smallest: as many should have become 0
    mean_error: float  # relative, of all that did not become infinite; 1 for what became 0
    worst_error: float  # of the values that are normal; nan where there are none


def limits(name: str) -> Limits:
    """`name` is a key of FORMATS, or fp32."""
    info = torch.finfo(choose({**FORMATS, "fp32": torch.float32}, name, "precision"))
    return Limits(info.smallest_normal * info.eps, info.smallest_normal, info.max, info.eps / 2)


@lru_cache
def gradients(model: str, seed: int = 0) -> Float[np.ndarray, " value"]:
    """The gradient of every parameter after one batch, in FP32, one after another; what is exactly 0 is left out."""
    subject = dates_model(trained=choose(MODELS, model, "model"), seed=seed)
    loss_of(subject, batch_of(dates_task(), BATCH, seed)).backward()
    values = torch.cat([p.grad.flatten() for p in subject.parameters() if p.grad is not None])
    return values[values != 0].numpy()


@lru_cache(maxsize=256)
def look(model: str, name: str, exponent: int = 0) -> Cast:
    """`cast` of the gradients of a model, a key of MODELS."""
    return cast(gradients(model), name, exponent)


@lru_cache
def histogram(model: str) -> tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]:
    """(middles of bins of log10 |gradient|, the share of the gradients in each); a quarter of a decade wide."""
    sizes = np.log10(np.abs(gradients(model)))
    low, high = np.floor(sizes.min()), np.ceil(sizes.max())
    counts, edges = np.histogram(sizes, bins=round((high - low) / BIN), range=(low, high))
    return (edges[:-1] + edges[1:]) / 2, counts / len(sizes)


def cast(values: Float[np.ndarray, " value"], name: str, exponent: int = 0) -> Cast:
    """Multiplies by 2^exponent, casts, and looks at what is left. `values` are FP32, none of them 0."""
    limit, scaled = limits(name), torch.from_numpy(values).abs() * 2.0**exponent
    made = scaled.to(choose(FORMATS, name, "precision")).float()
    zero, infinite = made == 0, made.isinf()
    normal = (made >= limit.normal) & ~infinite
    n_zero, n_infinite, n_normal = int(zero.sum()), int(infinite.sum()), int(normal.sum())
    error = ((made - scaled).abs() / scaled).masked_fill(infinite, 0.0)
    return Cast(
        len(values),
        n_zero,
        len(values) - n_zero - n_infinite - n_normal,
        n_infinite,
        int((scaled <= limit.smallest / 2).sum()),
        float(error.sum(dtype=torch.float64)) / max(1, len(values) - n_infinite),
        float(error.masked_fill(~normal, 0.0).max()) if n_normal else float("nan"),
    )
