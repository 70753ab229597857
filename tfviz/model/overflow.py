"""Numbers out of range: what a kernel computed is finite, or it is refused; never a quiet NaN, never a quiet zero.

A row of scores whose largest one is no finite number has no softmax. The naive kernel makes NaN of it; a fused one
takes a row of -inf for a row with nothing allowed, and gives zeros.
"""

from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from tfviz.errors import UnsupportedHere
from tfviz.model.scores import Key, Mask, Query, ScoreRule, attention_scores, empty_rows


def score_dtype(kernel: str, dtype: torch.dtype) -> torch.dtype:
    """What a kernel holds its scores in: naive in the precision of q and k, a fused one in FP32 at least."""
    return dtype if kernel == "naive" else torch.promote_types(dtype, torch.float32)


def all_finite(x: Tensor) -> bool:
    """Whether no number in x is NaN or infinite; True on the meta device, where there are no numbers."""
    if x.is_meta:
        return True
    x = x.detach()
    return isfinite(float(x.sum())) or bool(x.isfinite().all())  # a sum is one pass, and may overflow by itself


def keep_nan(output: Tensor, query: Tensor) -> Tensor:
    """`output`, changed in place: a query that is NaN gives NaN, where torch's fused kernel gives zeros."""
    return output.add_(query.amax(dim=-1, keepdim=True), alpha=0)


def scores_overflow(query: Query, key: Key, mask: Mask | None, rule: ScoreRule, dtype: torch.dtype) -> bool:
    """Whether scores held in `dtype` leave some row that has an allowed key without a finite largest one."""
    if query.is_meta or not query.numel() or not key.numel():
        return False
    query, key, bias = query.detach(), key.detach(), None if rule.bias is None else rule.bias.detach()
    scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    highest = _largest(query) * _largest(key) * query.shape[-1] * max(1.0, abs(scale))
    highest += 0.0 if bias is None else _largest(bias.masked_fill(bias == -torch.inf, 0.0))
    if highest < torch.finfo(dtype).max / 2:  # no score can come near the end of the range
        return False
    n_heads, n_kv_heads = query.shape[1], key.shape[1]
    for head in range(n_heads):  # one at a time: all of them would double the memory of a naive kernel
        group = head * n_kv_heads // n_heads
        own, shared = query[:, head : head + 1].to(dtype), key[:, group : group + 1].to(dtype)
        here = replace(rule, bias=None if bias is None else _of_head(bias, head).to(dtype))
        blocked = None if mask is None else _of_head(mask, head)
        lost = ~attention_scores(own, shared, blocked, here).amax(dim=-1).isfinite()
        empty = empty_rows(own, shared, blocked, here)
        if bool((lost if empty is None else lost & ~empty).any()):
            return True
    return False


def overflow_error(dtype: torch.dtype) -> UnsupportedHere:
    return UnsupportedHere("error.attention_scores", format=format_name(dtype), limit=largest_number(dtype))


def largest_number(dtype: torch.dtype) -> str:
    return f"{torch.finfo(dtype).max:.5g}"


def format_name(dtype: torch.dtype) -> str:
    """FP32, FP16, BF16, ... of a torch dtype."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "BF").replace("float", "FP")


def _largest(x: Tensor) -> float:
    return float(x.abs().amax())


def _of_head(x: Tensor, head: int) -> Tensor:
    """[batch, 1, query, key] of a tensor that all heads share or that has one slice a head."""
    return x if x.shape[1] == 1 else x[:, head : head + 1]
