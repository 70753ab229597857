"""Where the norm stands beside the residual connection.

    post:  x = norm(x + sublayer(x))     the paper, 2017; deep stacks need a careful warm-up
    pre:   x = x + sublayer(norm(x))     GPT-2, LLaMA; the residual stream is never normalised, gradients pass freely

https://arxiv.org/abs/2002.04745 compares the two.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.model.norm import NORMS
from tfviz.registry import choose

Stream = Float[Tensor, "*batch d_model"]  # *batch: batch and position, or rows alone


class PostNorm(nn.Module):
    """The paper's Add & Norm. Variants differ in what the sublayer reads and in what becomes of its output."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = choose(NORMS, config.norm, "norm")(config.d_model, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Stream, sublayer: Callable[[Tensor], Tensor]) -> Stream:
        return self.leave(x, sublayer(self.enter(x)))

    def enter(self, x: Stream) -> Stream:
        return x

    def leave(self, x: Stream, y: Stream) -> Stream:
        return self.norm(x + self.drop(y))

    def looked_up(self) -> tuple[Callable[[Tensor], Tensor] | None, Callable[[Tensor, Tensor], Tensor]]:
        """`enter` (None: the stream as it is) and `leave` as plain functions, for decode steps; no dropout."""
        norm = self.norm.looked_up()
        return None, lambda x, y: norm(x + y)

    def drop(self, y: Stream) -> Stream:
        """Dropout while training. Otherwise not even called: in a decode step of a small model calls are what costs."""
        return self.dropout(y) if self.training else y


class PreNorm(PostNorm):
    """The norm on the branch; the stack ends with one more norm."""

    def enter(self, x: Stream) -> Stream:
        return self.norm(x)

    def leave(self, x: Stream, y: Stream) -> Stream:
        return x + self.drop(y)

    def looked_up(self) -> tuple[Callable[[Tensor], Tensor] | None, Callable[[Tensor, Tensor], Tensor]]:
        return self.norm.looked_up(), torch.add


PLACEMENTS: dict[str, type[PostNorm]] = {"post": PostNorm, "pre": PreNorm}
