"""INT8 for weights only over torch's own packed product: weights in 8 bits, activations in BF16.

    y = (x Qᵀ) s,     W[o, i] ≈ s[o] Q[o, i],     s[o] = max |W[o, :]| / 127

Few rows (a decode step) are bound by the bytes that are read: `_weight_int8pack_mm` reads the levels as they are. Many
rows (a prefill) are bound by arithmetic: the levels become BF16 first, which holds them exactly, and the product is
the usual one (on CUDA always). Nothing is rounded but the weights and, as in BF16, what goes on between them.

One scale an output channel: "per-channel" of Krishnamoorthi (arXiv 1806.08342); weights only: W8A16.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfviz.inference.precision.cast import cast
from tfviz.inference.precision.int8 import (
    ROWS_AT_ONCE,
    TABLE,
    Table,
    _int8_embedding,
    _Int8Product,
    _is_conv1d,
    to_levels,
)

FEW_ROWS = 16  # up to which the packed product is faster than turning the levels into BF16, measured on a CPU
BLOCK = 16  # inputs that the packed product reads at once; it reads beyond the end of a row that does not divide


def table_of(weight: Tensor) -> Table:
    """[out, in] in INT8 with a BF16 scale for each output, a few rows at a time."""
    parts = [to_levels(weight[at : at + ROWS_AT_ONCE].detach().float()) for at in range(0, len(weight), ROWS_AT_ONCE)]
    levels, scales = (torch.cat(one) for one in zip(*parts, strict=True))
    return Table(levels.contiguous(), scales[:, 0].bfloat16(), None)


class Int8WeightLinear(_Int8Product):
    """`nn.Linear` (and transformers' Conv1D) whose weight is INT8 with a scale for each output; BF16 in, BF16 out."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], BF16."""
        rows = x.reshape(-1, self.in_features).to(self.scale.dtype)
        if len(rows) <= FEW_ROWS and self.in_features % BLOCK == 0 and not rows.is_cuda:
            out = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), self.levels, self.scale)
        else:
            out = F.linear(rows, self.levels.to(rows.dtype)).mul_(self.scale)  # y = (x Qᵀ) s; Q is exact in BF16
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)


MakeLinear = Callable[[Tensor, nn.Parameter | None], nn.Module | None]


def with_rounded_weights(model: nn.Module, make: MakeLinear) -> nn.Module:
    """A BF16 copy of the FP32 `model`: heads and large or tied look-up tables in INT8, other linear layers as `make`
    (weight [out, in], bias) gives them; None leaves one BF16.

    `model` is not changed. Tied weights share one table.
    """
    made = cast(model, torch.bfloat16)
    pairs = list(zip(model.modules(), made.modules(), strict=True))  # (FP32, its BF16 copy)
    looked_up = {id(one.weight) for one, _ in pairs if isinstance(one, nn.Embedding)}
    get_head: Any = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    tables: dict[int, Table] = {}

    def shared(weight: Tensor) -> Table:
        if id(weight) not in tables:
            tables[id(weight)] = table_of(weight)
        return tables[id(weight)]

    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*made.parameters(), *made.buffers())}
    copied: Any
    for one, copied in pairs:
        new: nn.Module | None = None
        if type(one) is nn.Linear and (one is head or id(one.weight) in looked_up):
            new = Int8WeightLinear(shared(one.weight), copied.bias)
        elif type(one) is nn.Linear:  # exactly: a subclass may compute something else
            new = make(one.weight, copied.bias)
        elif _is_conv1d(one):
            new = make(one.weight.t(), copied.bias)
        if new is not None:
            memo[id(copied)] = new
    for one, copied in pairs:
        if isinstance(one, nn.Embedding) and isinstance(copied, nn.Embedding) and one.max_norm is None:
            large = type(one) is nn.Embedding and one.weight.numel() >= TABLE
            if large or id(one.weight) in tables:
                memo[id(copied)] = _int8_embedding(copied, shared(one.weight))
    return copy.deepcopy(made, memo).train(model.training)


def to_int8_weights(model: nn.Module) -> nn.Module:
    """A BF16 copy of the FP32 `model` with the weights of every linear layer, and large or tied tables, in INT8.

    `model` is not changed. Tied weights share one table.
    """
    return with_rounded_weights(model, lambda weight, bias: Int8WeightLinear(table_of(weight), bias))
