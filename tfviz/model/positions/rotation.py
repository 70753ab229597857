"""Turning pairs of dimensions by given angles: what RoPE does to queries and keys.

    (x1, x2) -> (x1 cos a - x2 sin a,  x1 sin a + x2 cos a)

Two conventions of pairing are in use, and weights trained with one are wrong with the other: "interleaved" pairs
neighbours (the RoFormer paper, GPT-J), "halves" pairs dimension i with i + d/2 (GPT-NeoX, LLaMA in transformers).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Heads = Float[Tensor, "batch head pos dim"]


@dataclass(frozen=True)
class Rotation:
    """For each position the cosine and sine of each pair's angle."""

    cos: Float[Tensor, "#batch 1 pos pair"]
    sin: Float[Tensor, "#batch 1 pos pair"]
    interleaved: bool

    def __call__(self, x: Heads) -> Heads:
        """`x` with its first 2 x pairs dimensions turned; whatever is behind them passes through."""
        cos, sin, n = self.cos.to(x.dtype), self.sin.to(x.dtype), 2 * self.cos.shape[-1]
        turned, rest = x[..., :n], x[..., n:]
        if self.interleaved:
            x1, x2 = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).flatten(-2)
        else:
            x1, x2 = turned.chunk(2, dim=-1)
            turned = torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
