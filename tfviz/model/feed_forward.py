"""The position-wise network after attention: each position alone, the same weights for all.

FFN(x)    = f(x W_1 + b_1) W_2 + b_2      f = max(0, .) in the paper, GELU in BERT and GPT
SwiGLU(x) = (silu(x W_1) * (x W_3)) W_2   https://arxiv.org/abs/2002.05202; LLaMA
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.model.attention_call import report

Stream = Float[Tensor, "*batch d_model"]  # *batch: batch and position, or rows alone


class FeedForward(nn.Module):
    """Widens each position to d_ff features, bends them, and narrows back; `hidden` is what variants override."""

    def __init__(self, config: TransformerConfig, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff, bias=config.feed_forward_bias)
        self.w_2 = nn.Linear(config.d_ff, config.d_model, bias=config.feed_forward_bias)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = activation

    def hidden(self, x: Stream) -> Float[Tensor, "*batch d_ff"]:
        return self.activation(self.w_1(x))

    def forward(self, x: Stream) -> Stream:
        hidden = self.hidden(x)
        report(self, "feed_forward_hidden", hidden)
        return self.w_2(self.dropout(hidden) if self.training else hidden)


class GatedFeedForward(FeedForward):
    """Two widenings, one of which opens and closes the other."""

    def __init__(self, config: TransformerConfig, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__(config, activation)
        self.w_3 = nn.Linear(config.d_model, config.d_ff, bias=config.feed_forward_bias)

    def hidden(self, x: Stream) -> Float[Tensor, "*batch d_ff"]:
        return self.activation(self.w_1(x)) * self.w_3(x)


FEED_FORWARDS: dict[str, Callable[[TransformerConfig], FeedForward]] = {
    "relu": partial(FeedForward, activation=F.relu),
    "gelu": partial(FeedForward, activation=F.gelu),
    "gelu_tanh": partial(FeedForward, activation=partial(F.gelu, approximate="tanh")),  # GPT-2's approximation
    "swiglu": partial(GatedFeedForward, activation=F.silu),
}
