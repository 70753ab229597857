"""Sinusoidal encoding, added to the embeddings: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762

    PE(pos, 2i)     = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

PE(pos + k) is PE(pos) with each (sin, cos) pair rotated by an angle that depends on k alone.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tfviz.model.positions.base import Positions, PositionScheme, Vectors


def frequencies(d: int, base: float = 10000.0, device: torch.device | None = None) -> Float[Tensor, " pair"]:
    """base^(-2i / d) for i = 0, 1 ... ceil(d / 2) - 1: how far a pair turns a position, in radians."""
    return base ** (-torch.arange(0, d, 2, device=device, dtype=torch.float32) / d)


def sinusoidal_encoding(
    positions: Positions, d_model: int, base: float = 10000.0
) -> Float[Tensor, "#batch pos d_model"]:
    """PE of each position, FP32. With an odd `d_model` the last frequency has its sine only."""
    angle = positions[..., None] * frequencies(d_model, base, positions.device)  # pos / 10000^(2i / d_model)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # [batch, pos, pair, 2]
    return pairs.flatten(-2)[..., :d_model]  # sin, cos, sin, cos ...


class Sinusoidal(PositionScheme):
    """Nothing to learn, and no last position."""

    def add(self, x: Vectors, positions: Positions) -> Vectors:
        return x + sinusoidal_encoding(positions, x.shape[-1]).to(x.dtype)
