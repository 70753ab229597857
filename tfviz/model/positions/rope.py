"""Rotary position embedding: Su et al. 2021, https://arxiv.org/abs/2104.09864

Each pair of dimensions of q and k is turned by an angle that grows with the position:

    (x1, x2) -> (x1 cos(m θ_i) - x2 sin(m θ_i),  x1 sin(m θ_i) + x2 cos(m θ_i)),    θ_i = base^(-2i / d)

so q_m . k_n depends on m - n only (how pairs are turned: rotation.py). `SCALINGS` are the usual ways to reach beyond
the trained length.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tfviz.config import RopeScaling, TransformerConfig
from tfviz.model.positions.base import Positions, PositionScheme
from tfviz.model.positions.rotation import Rotation
from tfviz.model.positions.sinusoidal import frequencies
from tfviz.registry import choose

Theta = Float[Tensor, " pair"]


def linear(theta: Theta, base: float, scaling: RopeScaling) -> tuple[Theta, float]:
    """Position interpolation: every angle divided by the factor. https://arxiv.org/abs/2306.15595"""
    return theta / scaling.factor, 1.0


def ntk(theta: Theta, base: float, scaling: RopeScaling) -> tuple[Theta, float]:
    """A larger base, such that the slowest pair is stretched by the factor and the fastest hardly at all."""
    d = 2 * len(theta)
    stretched = base * scaling.factor ** (d / max(d - 2, 1))
    return frequencies(d, stretched, theta.device), 1.0


def yarn(theta: Theta, base: float, scaling: RopeScaling) -> tuple[Theta, float]:
    """Fast pairs as trained, slow ones stretched, a ramp between; scores sharpened. https://arxiv.org/abs/2309.00071"""
    d = 2 * len(theta)

    def pair_that_turns(times: float) -> float:
        """Which pair turns so many times within the trained length."""
        return d * math.log(scaling.original / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(scaling.fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.slow)), d - 1)
    ramp = (torch.arange(len(theta), device=theta.device) - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0, 1)
    return theta / scaling.factor * stretched + theta * (1 - stretched), 0.1 * math.log(scaling.factor) + 1


SCALINGS: dict[str, Callable[[Theta, float, RopeScaling], tuple[Theta, float]]] = {
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
}


def angles(
    d: int, base: float = 10000.0, scaling: RopeScaling | None = None, device: torch.device | None = None
) -> tuple[Theta, float]:
    """(θ of each of the d / 2 pairs in radians a position, the factor by which q and k grow)."""
    theta = frequencies(d, base, device)
    return (theta, 1.0) if scaling is None else choose(SCALINGS, scaling.kind, "scaling")(theta, base, scaling)


class Rope(PositionScheme):
    """Turns q and k; adds nothing to the embeddings, and values are not turned."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        if config.rope_scaling is not None:
            choose(SCALINGS, config.rope_scaling.kind, "scaling")

    def rotation(self, positions: Positions) -> Rotation:
        config = self.config
        d = config.width if config.rope_dims is None else config.rope_dims
        theta, grown = angles(d, config.rope_base, config.rope_scaling, positions.device)
        angle = positions[:, None, :, None] * theta  # [batch, 1, pos, pair]: m θ_i
        return Rotation(angle.cos() * grown, angle.sin() * grown, config.rope_pairs == "interleaved")
