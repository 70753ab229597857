"""Attention scores, and the two things that decide which of them count: the mask and the causal triangle.

    scores = q . k * scale   (capped, biased; -inf where blocked)

How scores are made is all in which the attention kernels agree; `ScoreRule` says it for one model.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfviz.model.masks import make_causal_mask

Query = Float[Tensor, "batch head query dim"]
Key = Float[Tensor, "batch kv_head key dim"]
Weights = Float[Tensor, "batch head query key"]
Mask = Bool[Tensor, "#batch #head #query key"]  # True = blocked
Bias = Float[Tensor, "#batch #head query key"]


@dataclass(frozen=True)
class ScoreRule:
    """How scores are made of q.k, besides the mask: everything in which the models of the field differ here."""

    scale: float | None = None  # None: 1 / sqrt(d_k)
    causal: bool = False  # block the future without a mask tensor
    softcap: float | None = None  # scores = cap * tanh(scores / cap), as in Gemma-2
    bias: Bias | None = None  # added to the scores: ALiBi, T5's relative positions

    def __post_init__(self) -> None:
        """A scale that is no number and a cap of 0 make scores that no kernel tells from good ones."""
        if self.scale is not None and self.scale != self.scale:
            raise ValueError(f"scale = {self.scale} is not possible; allowed: a number, or None for 1 / sqrt(d_k)")
        if self.softcap is not None and not abs(self.softcap) > 0:
            raise ValueError(f"softcap = {self.softcap} is not possible; allowed: a number but 0, or None")


PLAIN = ScoreRule()


def attention_scores(query: Query, key: Key, mask: Mask | None = None, rule: ScoreRule = PLAIN) -> Weights:
    """Scores after scale, bias, soft cap and mask (-inf where blocked), before softmax."""
    scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores = (query * scale) @ share_heads(key, query.shape[1]).transpose(-2, -1)  # q . k / sqrt(d_k)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.bias is not None:
        scores = scores + rule.bias.to(scores.dtype)
    blocked = blocked_cells(query, key, mask, rule)
    return scores if blocked is None else scores.masked_fill_(blocked, float("-inf"))


def blocked_cells(
    query: Query, key: Key, mask: Mask | None, rule: ScoreRule
) -> Mask | Bool[Tensor, "query key"] | None:
    """The mask and the causal triangle together."""
    if not rule.causal:
        return mask
    future = make_causal_mask(query.shape[2], key.shape[2], device=query.device)
    return future if mask is None else mask | future


def empty_rows(
    query: Query, key: Key, mask: Mask | None, rule: ScoreRule
) -> Bool[Tensor, "#batch #head #query"] | None:
    """Rows without an allowed key; None: there are none. Told by mask and bias: scores that overflow look alike."""
    if mask is None and rule.bias is None:  # the causal triangle leaves every row a key
        return None
    blocked = blocked_cells(query, key, mask, rule)
    if rule.bias is None:
        return None if blocked is None else blocked.all(dim=-1)
    shut = rule.bias.detach().to(query.dtype) == float("-inf")
    return (shut if blocked is None else shut | blocked).all(dim=-1)


def share_heads(x: Float[Tensor, "batch kv_head pos dim"], n_heads: int) -> Float[Tensor, "batch head pos dim"]:
    """Repeats each key/value head for the query heads of its group: kv 0 0 0 1 1 1 ..."""
    group = n_heads // x.shape[1]
    return x if group == 1 else x.repeat_interleave(group, dim=1)
