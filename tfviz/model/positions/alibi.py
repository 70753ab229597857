"""Attention with linear biases: Press et al. 2021, https://arxiv.org/abs/2108.12409

    scores_ij = q_i . k_j / sqrt(d_k) - m_h |i - j|

One fixed slope m_h a head, nothing learned. It is a penalty on distance, and no interpolation of anything.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.model.positions.base import PositionScheme


def slopes(n_heads: int) -> Float[Tensor, " head"]:
    """2^(-8/n), 2^(-16/n) ... 2^-8 for n a power of two (8 heads: 1/2 ... 1/256).

    Otherwise those of the power of two below, then every second one of the power of two above (the authors' rule).
    """
    below = 2 ** math.floor(math.log2(n_heads))
    found = [2 ** (-8 * (h + 1) / below) for h in range(below)]
    found += [2 ** (-4 * (h + 1) / below) for h in range(0, 2 * below, 2)]  # of 2 x below heads: -8 / (2 below)
    return torch.tensor(found[:n_heads])


class Alibi(PositionScheme):
    """A bias on scores; in an encoder it grows in both directions."""

    def bias(
        self, query_positions: Int[Tensor, "#batch query"], key_positions: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch head query key"]:
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()  # [batch, query, key]
        m = slopes(self.config.n_heads).to(distance.device)
        return -m[:, None, None] * distance[:, None]
