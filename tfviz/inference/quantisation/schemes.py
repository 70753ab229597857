"""Whole numbers in place of a weight matrix: which weights share a scale, and where the levels lie.

    symmetric      W ≈ s q,         q in -(2^(b-1) - 1) .. 2^(b-1) - 1,   s = max |W| / (2^(b-1) - 1)
    asymmetric     W ≈ s q + m,     q in 0 .. 2^b - 1,                    s = (max W - m) / (2^b - 1),   m = min W

max and min run over the whole tensor, over an output channel (a row of W), or over a group of neighbours in a row.
Scales and minima are held in FP16, as files hold them, and take up bits as well: b + (16 or 32) / (weights in a group).
Rounding each weight to its nearest level (RTN, "absmax" when symmetric) is off by half a step at most.

Symmetric and affine: Jacob et al. 2018, arXiv 1712.05877. Groups: ZeroQuant, arXiv 2206.01861.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int16
from torch import Tensor

from tfviz.checks import require, whole
from tfviz.errors import TfvizError

SHARES = ("tensor", "channel", "group")  # what has one scale
BITS = (8, 7, 6, 5, 4, 3, 2)
SCALE_BITS = 16  # of a scale, and of a minimum
SLACK = 1e-5  # relative: FP16 may fall so far short of the range without being rounded up


@dataclass(frozen=True)
class Scheme:
    """How a matrix is cut into parts with a scale each; `group` counts only where `share` is "group"."""

    bits: int
    share: str = "group"
    group: int = 64
    symmetric: bool = False

    def __post_init__(self) -> None:
        require(self.bits in BITS, "bits", self.bits, "allowed.from_to", low=2, high=8)
        require(self.share in SHARES, "share", self.share, "speed.quantisation.allowed.share")
        whole("group", self.group, 2)

    @property
    def lowest(self) -> int:
        return -(2 ** (self.bits - 1) - 1) if self.symmetric else 0

    @property
    def highest(self) -> int:
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    def width(self, n_in: int) -> int:
        """Neighbours in a row that share a scale."""
        return min(self.group, n_in) if self.share == "group" else n_in

    def bits_a_weight(self, n_out: int, n_in: int) -> float:
        """With what the scales (and minima) take up."""
        scales = 1 if self.share == "tensor" else n_out * -(-n_in // self.width(n_in))
        return self.bits + scales * SCALE_BITS * (1 if self.symmetric else 2) / (n_out * n_in)


@dataclass(frozen=True, eq=False)
class Quantised:
    """A matrix as levels with the scale and minimum of each part; a tensor's stand for all rows."""

    scheme: Scheme
    levels: Int16[Tensor, "out in"]
    scale: Float[Tensor, "rows group"]  # rows: out, or 1 for a whole tensor
    low: Float[Tensor, "rows group"]

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in (self.levels, self.scale, self.low))

    def step(self) -> Float[Tensor, "rows in"]:
        """The scale of each column of each row."""
        return _spread(self.scale, self.scheme, self.levels.shape[1])

    def dequantised(self) -> Float[Tensor, "out in"]:
        """s q + m"""
        low = _spread(self.low, self.scheme, self.levels.shape[1])
        return torch.addcmul(low, self.levels.to(torch.float32), self.step())


def quantise(weight: Float[Tensor, "out in"], scheme: Scheme) -> Quantised:
    """Every weight to the nearest level of its part. `TfvizError` for what is not a finite number."""
    scale, low = grid(weight, scheme)
    n_in = weight.shape[1]
    levels = nearest(weight.float(), _spread(scale, scheme, n_in), _spread(low, scheme, n_in), scheme)
    return Quantised(scheme, levels.to(torch.int16), scale, low)


def grid(
    weight: Float[Tensor, "out in"], scheme: Scheme
) -> tuple[Float[Tensor, "rows group"], Float[Tensor, "rows group"]]:
    """Scale and minimum of each part; the last group of a row may be a shorter one."""
    refuse_odd(weight)
    n_in, width = weight.shape[1], scheme.width(weight.shape[1])
    rows = F.pad(weight.float()[None], (0, -n_in % width), mode="replicate")[0]  # a repeated weight is no new extreme
    parts = (
        rows.reshape(1, 1, -1) if scheme.share == "tensor" else rows.unflatten(1, (-1, width))
    )  # [row, group, width]
    return range_to_grid(parts.amin(-1), parts.amax(-1), scheme)


def range_to_grid(low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Scale and minimum that reach from `low` to `high`, as FP16 holds them."""
    if scheme.symmetric:
        low, high = torch.zeros_like(low), torch.maximum(high, -low)  # max |W|
    low = -_fp16_from(-low)
    return _fp16_from((high - low).clamp_min(0) / scheme.highest), low


def nearest(weight: Tensor, step: Tensor, low: Tensor, scheme: Scheme) -> Tensor:
    """q = round((W - m) / s), within the levels that there are; where a part is constant, s = 0 and q = 0."""
    return ((weight - low) / torch.where(step > 0, step, torch.inf)).round_().clamp_(scheme.lowest, scheme.highest)


def in_range(numbers: Tensor) -> bool:
    """Whether FP16 scales and minima can hold these numbers: beyond 65,504 they are infinite, and NaN is none."""
    return bool((numbers.abs() <= 60000).all())


def refuse_odd(numbers: Tensor) -> None:
    if not in_range(numbers):
        raise TfvizError("speed.quantisation.error.odd")


def _fp16_from(x: Tensor) -> Tensor:
    """The FP16 number next to x, or the next larger one where that would fall short of x."""
    half = x.half()
    pattern = half.view(torch.int16)  # sign and magnitude: one further from zero, or nearer to it, is one up
    up = torch.where(half > 0, pattern + 1, torch.where(half < 0, pattern - 1, torch.ones_like(pattern)))
    return torch.where(half.float() < x - SLACK * x.abs(), up.view(torch.float16), half).float()


def _spread(x: Float[Tensor, "rows group"], scheme: Scheme, n_in: int) -> Float[Tensor, "rows in"]:
    """A group's number for each of its columns; a row's stays one column, which broadcasts."""
    return x if x.shape[1] == 1 else x.repeat_interleave(scheme.width(n_in), dim=1)[:, :n_in]


# ---- what it does


def relative(error: Tensor, whole: Tensor) -> float:
    """||error|| / ||whole||, Frobenius; 0 where there is nothing to be off from and nothing is."""
    size = float(whole.norm())
    return float(error.norm()) / size if size > 0 else 0.0 if not bool(error.any()) else float("inf")


def output_error(x: Float[Tensor, "row in"], weight: Float[Tensor, "out in"], made: Float[Tensor, "out in"]) -> float:
    """||X W^T - X What^T|| / ||X W^T||"""
    return relative(x @ (weight - made).T, x @ weight.T)


def distinct_levels(made: Float[Tensor, "out in"], quantised: Quantised) -> tuple[int, float]:
    """(the most different values that any part of the array has, how far it is off the levels at most, in steps).

    Both are read from the array `made`, not from the levels that it was made of.
    """
    scheme, n_in = quantised.scheme, made.shape[1]
    step, low = quantised.step(), _spread(quantised.low, scheme, n_in)
    raw = (made - low) / torch.where(step > 0, step, torch.inf)
    levels = raw.round()
    beside = bool((made != low)[(step == 0).expand_as(made)].any())  # of a constant part
    gap = float("inf") if beside else float((raw - levels).abs().max())
    room = int(levels.max() - levels.min()) + 1
    width = scheme.width(n_in)
    codes = (levels - levels.min()).to(torch.int64)
    if scheme.share == "tensor":
        seen = torch.zeros(1, room, dtype=torch.bool).scatter_(1, codes.reshape(1, -1), True)
    else:
        part = torch.arange(n_in) // width  # [in] -> group
        seen = torch.zeros(len(made), (int(part[-1]) + 1) * room, dtype=torch.bool)
        seen = seen.scatter_(1, codes + part * room, True).unflatten(1, (-1, room))
    return int(seen.sum(-1).max()), gap


def bits_already(weight: Float[Tensor, "out in"], group: int = 32) -> int | None:
    """b, up to 4, where no group of neighbours holds more than 2^b different values: the matrix was in so few bits."""
    if weight.shape[1] % group:
        return None
    ordered = weight.reshape(-1, group).sort(-1).values
    most = int((ordered.diff(dim=-1) != 0).sum(-1).max()) + 1
    return next((bits for bits in (2, 3, 4) if most <= 2**bits), None)


def same_parts(schemes: Sequence[Scheme]) -> bool:
    """Whether they differ in their bits only."""
    return len({(one.share, one.group, one.symmetric) for one in schemes}) == 1
