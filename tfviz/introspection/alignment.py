"""The causal triangle over a cache: fewer queries than keys, and two ways to lay the triangle over the rectangle.

    top left       query i sees key j when j <= i                        torch's is_causal flag
    bottom right   query i sees key j when j <= i + (n_key - n_query)    the last query is the newest token

Measured on one head's own q, k and v: only bottom right gives the rows that the whole text gives at once.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float

from tfviz.introspection.trace import LayerAttention
from tfviz.model.attention import ScoreRule, scaled_dot_product_attention
from tfviz.model.masks import make_causal_mask

Array = np.ndarray


@dataclass(frozen=True)
class Alignments:
    """Both masks (True = blocked), the weights under each, and the outputs of four ways to compute the same rows."""

    top_left: Bool[Array, "query key"]
    bottom_right: Bool[Array, "query key"]
    weights_top_left: Float[Array, "query key"]
    weights_bottom_right: Float[Array, "query key"]
    out_top_left: Float[Array, "query dim"]
    out_bottom_right: Float[Array, "query dim"]
    out_flag: Float[Array, "query dim"]  # F.scaled_dot_product_attention(is_causal=True)
    out_whole: Float[Array, "query dim"]  # the last rows of the whole text, without a cache


def alignments(layer: LayerAttention, head: int, n_query: int, n_key: int) -> Alignments:
    """The last `n_query` of the first `n_key` tokens ask all of them. `ValueError` for more queries than keys."""
    bottom_right = make_causal_mask(n_query, n_key)
    top_left = torch.ones(n_query, n_key, dtype=torch.bool).triu(diagonal=1)
    shared = head * len(layer.key) // len(layer.query)
    query, key, value = (
        torch.from_numpy(array[place : place + 1, :n_key])[None]
        for array, place in ((layer.query, head), (layer.key, shared), (layer.value, shared))
    )
    new, rule = query[:, :, n_key - n_query :], ScoreRule(layer.scale)

    def attend(mask: torch.Tensor) -> tuple[Array, Array]:
        output, weights = scaled_dot_product_attention(new, key, value, mask[None, None], rule=rule)
        assert weights is not None, "the naive kernel has weights"
        return output[0, 0].numpy(), weights[0, 0].numpy()

    out_top_left, weights_top_left = attend(top_left)
    out_bottom_right, weights_bottom_right = attend(bottom_right)
    flag = F.scaled_dot_product_attention(new, key, value, is_causal=True, scale=layer.scale)
    whole, _ = scaled_dot_product_attention(query, key, value, make_causal_mask(n_key)[None, None], rule=rule)
    return Alignments(
        top_left.numpy(),
        bottom_right.numpy(),
        weights_top_left,
        weights_bottom_right,
        out_top_left,
        out_bottom_right,
        flag[0, 0].numpy(),
        whole[0, 0, n_key - n_query :].numpy(),
    )
