"""What is drawn of one matrix in few bits, read from the arrays once, so that moving the slider computes nothing again.

error = What - W;  in steps: (W - What) / s
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.inference.quantisation import Quantised, Scaled, Scheme, distinct_levels, output_error
from tfviz.inference.quantisation.schemes import grid

WINDOW = 64  # rows and columns that are drawn
BINS = 121
REACH = 1.75  # median steps of plain rounding's grid that the histogram of errors reaches
HALF = 0.505  # of a step: FP16 scales may fall short of the range by 1e-5, which 255 levels add up to 0.003
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Histogram:
    """What lies outside the edges is not counted."""

    edges: Float[Array, " edge"]
    counts: Float[Array, " bin"]


@dataclass(frozen=True, eq=False)
class Look:
    """One method at one width. The window has WINDOW rows and columns, fewer of a small matrix."""

    scheme: Scheme
    first: tuple[int, int]  # row and column of the matrix where the window begins
    at: tuple[int, int]  # of the matrix: the widest channel's largest weight
    before: Float[Array, "row column"]
    after: Float[Array, "row column"]
    step: Float[Array, "row column"]
    levels: Int[Array, "row column"]
    values: Histogram  # of what is rounded: W, or AWQ's W diag(s)
    errors: Histogram
    rugs: Mapping[
        str, tuple[float, Float[Array, " level"]]
    ]  # (step, levels) of all, or of the finest, middle, coarsest
    n_scales: int
    sentence: float  # output error on the sentence of the page
    most: int  # different values in a part, as the array has them
    gap: float  # how far the array is off its levels, in steps
    steps: float  # the largest error in steps; AWQ's are of the scaled matrix
    within_half: bool  # a step, everywhere
    by: float | None = None  # AWQ: the widest channel's scale against the median channel's

    @property
    def nbytes(self) -> int:
        arrays = [getattr(self, one.name) for one in fields(self)]
        return sum(one.nbytes for one in arrays if isinstance(one, Array)) + 8 * BINS


def look(
    weight: Float[Tensor, "out in"],
    sentence: Float[Tensor, "row in"],
    made: Quantised | Scaled,
    top: Int[Tensor, " channel"],
    array: Float[Tensor, "out in"] | None = None,
) -> Look:
    """`top`: input channels with the largest activations, largest first; `array`: what the matrix became."""
    plain = made.quantised if isinstance(made, Scaled) else made
    array = made.dequantised() if array is None else array
    values = weight * made.scales if isinstance(made, Scaled) else weight  # what is rounded,
    became = array * made.scales if isinstance(made, Scaled) else array  # and what to
    (n_out, n_in), step, width = weight.shape, plain.step(), plain.scheme.width(weight.shape[1])
    column, row = int(top[0]), int(weight[:, top[0]].abs().argmax())
    first = _start(row, n_out, 1), _start(column, n_in, min(width, 16))
    cut = (slice(first[0], first[0] + WINDOW), slice(first[1], first[1] + WINDOW))
    shown_step = step.expand(n_out, n_in)[cut]
    if isinstance(made, Scaled):
        shown_step = shown_step / made.scales[cut[1]]
    most, gap = distinct_levels(became, plain)
    reach = max(REACH * float(grid(weight, plain.scheme)[0].median()), 1e-9)
    off = (became - values).abs()
    return Look(
        plain.scheme,
        first,
        (row, column),
        _array(weight[cut]),
        _array(array[cut]),
        _array(shown_step),
        plain.levels[cut].numpy().copy(),
        histogram(values, float(values.min()), float(values.max())),
        histogram(array - weight, -reach, reach),
        _rugs(plain),
        plain.scale.numel(),
        output_error(sentence, weight, array),
        most,
        gap,
        float((off / step.clamp_min(1e-12)).max()) if bool((step > 0).any()) else 0.0,
        bool((off <= HALF * step + 1e-6 * values.abs() + 1e-9).all()),
        float(made.scales[column] / made.scales.median()) if isinstance(made, Scaled) else None,
    )


def histogram(values: Tensor, low: float, high: float) -> Histogram:
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1, dtype=np.float32)
    return Histogram(edges, values.flatten().histc(BINS, low, high).numpy())


def _rugs(plain: Quantised) -> dict[str, tuple[float, Float[Array, " level"]]]:
    """The levels of the finest, the middle and the coarsest part; of the only one."""
    scale, low = plain.scale.flatten(), plain.low.flatten()
    order, n = scale.argsort(), scale.numel()
    names = {"all": 0} if n == 1 else {"fine": 0, "middle": n // 2, "coarse": n - 1}
    codes = torch.arange(plain.scheme.lowest, plain.scheme.highest + 1, dtype=torch.float32)
    picks = {name: order[i] for name, i in names.items()}
    return {name: (float(scale[i]), (codes * scale[i] + low[i]).numpy()) for name, i in picks.items()}


def _start(at: int, n: int, unit: int) -> int:
    """The first of WINDOW places around `at`, inside 0 .. n, at a multiple of `unit` where that is possible."""
    return max(0, min((at - WINDOW // 2) // unit * unit, n - WINDOW))


def _array(part: Tensor) -> Float[Array, "row column"]:
    return part.numpy().astype(np.float32)  # a copy: the matrix need not stay for it
