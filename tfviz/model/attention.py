"""Scaled dot-product attention, twice: the form one can look into, and the form that is fast.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

`naive` builds the n x n matrix and returns it; `flash` is torch's fused kernel, which never has it. Called by itself a
kernel gives what it computes, NaN where numbers leave their range; `scaled_dot_product_attention` refuses such numbers.
Sources: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Dao et al. 2022, https://arxiv.org/abs/2205.14135
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tfviz.errors import UnsupportedHere
from tfviz.model.overflow import all_finite, format_name, overflow_error, score_dtype, scores_overflow
from tfviz.model.scores import (
    PLAIN,
    Key,
    Mask,
    Query,
    ScoreRule,
    Weights,
    attention_scores,
    blocked_cells,
    empty_rows,
    share_heads,
)
from tfviz.registry import choose

__all__ = [
    "ATTENTION_KERNELS",
    "PLAIN",
    "Key",
    "Mask",
    "Output",
    "Query",
    "ScoreRule",
    "Value",
    "Weights",
    "attention_scores",
    "attention_weights",
    "flash",
    "naive",
    "scaled_dot_product_attention",
    "share_heads",
]

Value = Float[Tensor, "batch kv_head key value_dim"]
Output = Float[Tensor, "batch head query value_dim"]


def scaled_dot_product_attention(
    query: Query,
    key: Key,
    value: Value,
    mask: Mask | None = None,
    *,
    kernel: str = "naive",
    dropout_p: float = 0.0,
    rule: ScoreRule = PLAIN,
) -> tuple[Output, Weights | None]:
    """One attention over all heads; `(output, weights)`, where flash has no weights (None).

    Key and value may have fewer heads than query (grouped-query attention): head h reads group h // (heads / kv_heads).
    A row with no allowed key gives zeros. `ValueError` for heads that do not divide or an unknown kernel;
    `UnsupportedHere` where scores or output leave the range of their format.
    """
    n_heads, n_kv_heads = query.shape[1], key.shape[1]
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} key/value heads evenly")
    if key.shape[2] != value.shape[2]:  # torch's fused kernel would read whatever lies there
        raise ValueError(f"{key.shape[2]} keys cannot weigh {value.shape[2]} values: there must be one for each")
    output, weights = choose(ATTENTION_KERNELS, kernel, "kernel")(query, key, value, mask, dropout_p, rule)
    dtype = score_dtype(kernel, query.dtype)
    if scores_overflow(query, key, mask, rule, dtype):
        raise overflow_error(dtype)
    if not all_finite(output):
        raise UnsupportedHere("error.attention_output", format=format_name(output.dtype))
    return output, weights


def attention_weights(query: Query, key: Key, mask: Mask | None = None, rule: ScoreRule = PLAIN) -> Weights:
    """softmax(scores): rows sum to 1, blocked cells are exactly 0, a row with nothing allowed is all zeros.

    `UnsupportedHere` where the scores leave the range of their format.
    """
    weights = _weights(query, key, mask, rule)
    if not all_finite(weights[..., 0]):  # one score out of range makes its whole row NaN
        raise overflow_error(weights.dtype)
    return weights


def _weights(query: Query, key: Key, mask: Mask | None, rule: ScoreRule) -> Weights:
    weights = attention_scores(query, key, mask, rule).softmax(dim=-1)
    empty = empty_rows(query, key, mask, rule)
    return weights if empty is None else weights.masked_fill(empty[..., None], 0.0)


def naive(
    query: Query, key: Key, value: Value, mask: Mask | None, dropout_p: float, rule: ScoreRule
) -> tuple[Output, Weights | None]:
    """The article's form: n x n scores, n x n weights, then their product with the values."""
    weights = _weights(query, key, mask, rule)
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    return dropped @ share_heads(value, query.shape[1]), weights


def flash(
    query: Query, key: Key, value: Value, mask: Mask | None, dropout_p: float, rule: ScoreRule
) -> tuple[Output, Weights | None]:
    """torch's fused kernel: the matrix never exists. Its mask means "allowed", so ours is turned over here."""
    if rule.softcap is not None:
        raise UnsupportedHere("error.flash_softcap")
    n_query, n_key = query.shape[2], key.shape[2]
    blocked, causal = mask, rule.causal and n_query > 1
    if causal and (mask is not None or rule.bias is not None or n_query != n_key):  # the flag stands alone, top left
        blocked, causal = blocked_cells(query, key, mask, rule), False
    allowed = None if blocked is None else ~blocked
    if rule.bias is not None:
        bias = rule.bias.to(query.dtype)
        allowed = bias if blocked is None else bias.masked_fill(blocked, float("-inf"))
    if allowed is not None:  # CUDA's fused kernels share heads only without a mask
        key, value = share_heads(key, query.shape[1]), share_heads(value, query.shape[1])
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout_p,
        is_causal=causal,
        scale=rule.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if allowed is None:
        return output, None
    some = allowed if allowed.dtype == torch.bool else allowed.detach().amax(dim=-1, keepdim=True) > float("-inf")
    return output.masked_fill(~some.any(dim=-1, keepdim=True), 0.0), None  # zeros where no key is allowed


ATTENTION_KERNELS: dict[str, Callable[..., tuple[Output, Weights | None]]] = {"naive": naive, "flash": flash}
