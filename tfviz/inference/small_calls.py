"""Calls of single operators that compute little or move little: views, passes, reductions and curves, by name.

What such a call costs differs by operator more than by size: an addition of 16 numbers takes 3 microseconds where a
roll takes 10. So the cost of a call is measured operator by operator, and an operator that stands in no table costs as
much as the mean of its kind.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[[], Any]
TYPICAL = {
    "pass": ("add", "mul", "cat", "copy"),
    "reduce": ("mean", "layer_norm", "amax"),
    "curve": ("silu", "gelu", "pow"),
    "view": ("transpose", "slice", "view", "split"),
}


def calls(kind: str, op: str, x: Tensor) -> list[Call]:
    """The operator `op` on operands like x [1, rows, features]; without a name, or by an unknown one, the typical."""
    table = _TABLES[kind](x)
    return [table[op]] if op in table else [table[name] for name in TYPICAL[kind]]


def _passes(x: Tensor) -> dict[str, Call]:
    y, weight, scalar, table = x.clone(), x[0, 0].clone(), x[..., :1].clone(), x[0].clone()
    ids, blocked = torch.zeros(1, x.shape[1], dtype=torch.long, device=x.device), torch.zeros_like(x, dtype=torch.bool)
    other = torch.float32 if x.dtype != torch.float32 else torch.bfloat16
    return {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * weight,
        "div": lambda: x / scalar,
        "neg": lambda: -x,
        "abs": x.abs,
        "round": lambda: y.round_(),
        "clamp_min": lambda: y.clamp_min_(1e-8),
        "relu": lambda: F.relu(x),
        "cat": lambda: torch.cat((x, y), dim=-1),
        "stack": lambda: torch.stack((x, y), dim=-1),
        "copy": lambda: y.copy_(x),
        "to": lambda: x.to(other),
        "roll": lambda: x.roll(x.shape[-1] // 2, -1),
        "addcmul": lambda: torch.addcmul(x, y, weight),
        "nan_to_num": lambda: torch.nan_to_num(x),
        "embedding": lambda: F.embedding(ids, table),
        "arange": lambda: torch.arange(x.shape[-1], device=x.device),
        "zeros": lambda: torch.zeros(x.shape, device=x.device),
        "where": lambda: torch.where(blocked, x, y),
        "masked_fill": lambda: x.masked_fill(blocked, 0.0),
        "eq": lambda: x == 0,
        "all": blocked.all,
        "any": blocked.any,
    }


def _reductions(x: Tensor) -> dict[str, Call]:
    weight = x[0, 0].clone()
    return {
        "mean": lambda: x.mean(-1, keepdim=True),
        "sum": lambda: x.sum(-1),
        "layer_norm": lambda: F.layer_norm(x, weight.shape, weight, weight),
        "amax": lambda: x.amax(-1),
    }


def _curves(x: Tensor) -> dict[str, Call]:
    return {
        "silu": lambda: F.silu(x),
        "gelu": lambda: F.gelu(x),
        "pow": lambda: x.pow(2),
        "rsqrt": x.rsqrt,
        "tanh": x.tanh,
        "cos": x.cos,
        "sin": x.sin,
    }


def _views(x: Tensor) -> dict[str, Call]:
    flat = x[0]
    return {
        "transpose": lambda: x.transpose(-1, -2),
        "t": flat.t,
        "permute": lambda: x.permute(2, 0, 1),
        "slice": lambda: x[..., :1],
        "narrow": lambda: x.narrow(-1, 0, 1),
        "select": lambda: x[:, 0],
        "unsqueeze": lambda: x.unsqueeze(1),
        "expand": lambda: x.expand(2, -1, -1),
        "view": lambda: x.view(-1, 1),
        "reshape": lambda: x.reshape(-1, 1),
        "flatten": lambda: x.flatten(0, 1),
        "split": lambda: x.split(1, dim=0),
        "split_with_sizes": lambda: x.split((1, x.shape[-1] - 1), dim=-1),
        "to": lambda: x.to(x.dtype),
        "dropout": lambda: F.dropout(x, 0.1, False),
    }


_TABLES = {"pass": _passes, "reduce": _reductions, "curve": _curves, "view": _views}
