"""Scaled dot-product attention, twice: the form one can look into, and the form that is fast.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

`naive` builds the n x n matrix and returns it; `flash` is torch's fused kernel, which never has it.
Sources: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Dao et al. 2022, https://arxiv.org/abs/2205.14135
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from tfviz.errors import UnsupportedHere
from tfviz.model.masks import make_causal_mask
from tfviz.registry import choose

Query = Float[Tensor, "batch head query dim"]
Key = Float[Tensor, "batch kv_head key dim"]
Value = Float[Tensor, "batch kv_head key value_dim"]
Output = Float[Tensor, "batch head query value_dim"]
Weights = Float[Tensor, "batch head query key"]
Mask = Bool[Tensor, "#batch #head #query key"]  # True = blocked


@dataclass(frozen=True)
class ScoreRule:
    """How scores are made of q.k, besides the mask: everything in which the models of the field differ here."""

    scale: float | None = None  # None: 1 / sqrt(d_k)
    causal: bool = False  # block the future without a mask tensor
    softcap: float | None = None  # scores = cap * tanh(scores / cap), as in Gemma-2
    bias: Float[Tensor, "#batch #head query key"] | None = None  # added to the scores: ALiBi, T5's relative positions


PLAIN = ScoreRule()


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
    A row with no allowed key gives zeros. `ValueError` for heads that do not divide or an unknown kernel.
    """
    n_heads, n_kv_heads = query.shape[1], key.shape[1]
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} key/value heads evenly")
    return choose(ATTENTION_KERNELS, kernel, "kernel")(query, key, value, mask, dropout_p, rule)


def attention_scores(query: Query, key: Key, mask: Mask | None = None, rule: ScoreRule = PLAIN) -> Weights:
    """Scores after scale, bias, soft cap and mask (-inf where blocked), before softmax."""
    scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores = (query * scale) @ share_heads(key, query.shape[1]).transpose(-2, -1)  # q . k / sqrt(d_k)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.bias is not None:
        scores = scores + rule.bias.to(scores.dtype)
    if rule.causal:
        scores.masked_fill_(make_causal_mask(*scores.shape[-2:], device=scores.device), float("-inf"))
    return scores if mask is None else scores.masked_fill_(mask, float("-inf"))


def attention_weights(query: Query, key: Key, mask: Mask | None = None, rule: ScoreRule = PLAIN) -> Weights:
    """softmax(scores): rows sum to 1, blocked cells are exactly 0, a row with nothing allowed is all zeros."""
    weights = attention_scores(query, key, mask, rule).softmax(dim=-1)
    can_block_a_whole_row = mask is not None or rule.bias is not None
    return weights.nan_to_num(nan=0.0) if can_block_a_whole_row else weights


def naive(
    query: Query, key: Key, value: Value, mask: Mask | None, dropout_p: float, rule: ScoreRule
) -> tuple[Output, Weights | None]:
    """The article's form: n x n scores, n x n weights, then their product with the values."""
    weights = attention_weights(query, key, mask, rule)
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    return dropped @ share_heads(value, query.shape[1]), weights


def flash(
    query: Query, key: Key, value: Value, mask: Mask | None, dropout_p: float, rule: ScoreRule
) -> tuple[Output, Weights | None]:
    """torch's fused kernel: the matrix never exists. Its mask means "allowed", so ours is turned over here."""
    if rule.softcap is not None:
        raise UnsupportedHere("error.flash_softcap")
    n_query, n_key = query.shape[2], key.shape[2]
    causal, allowed = rule.causal and n_query > 1, None if mask is None else ~mask
    if causal and (allowed is not None or rule.bias is not None or n_query != n_key):  # the flag stands alone, top left
        past = ~make_causal_mask(n_query, n_key, device=query.device)
        causal, allowed = False, past if allowed is None else allowed & past
    if rule.bias is not None:
        bias = rule.bias.to(query.dtype)
        allowed = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
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
    return output.nan_to_num(nan=0.0) if allowed is not None else output, None


def share_heads(x: Float[Tensor, "batch kv_head pos dim"], n_heads: int) -> Float[Tensor, "batch head pos dim"]:
    """Repeats each key/value head for the query heads of its group: kv 0 0 0 1 1 1 ..."""
    group = n_heads // x.shape[1]
    return x if group == 1 else x.repeat_interleave(group, dim=1)


ATTENTION_KERNELS: dict[str, Callable[..., tuple[Output, Weights | None]]] = {"naive": naive, "flash": flash}
