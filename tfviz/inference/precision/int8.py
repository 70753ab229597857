"""INT8 inference over torch's own integer product: weights and activations in 8 bits, sums in 32.

    y = x Wᵀ = (x H)(W H)ᵀ,     x H ≈ t q,     W H ≈ s Q,     y ≈ t s (q Qᵀ)

q, Q are integers in -127..127; t is the scale of a row of x H (one a token, found while running) and s that of a row
of W H (one an output channel, found once): the row's largest magnitude / 127. H is a block-diagonal Hadamard rotation:
H H = 1, so it changes nothing in exact arithmetic, but it spreads the few channels in which trained Transformers carry
huge values over their block, and one scale then fits the whole row. No calibration text is needed. A table used both
for look-up and as the output head is stored once.

Per-token scales: ZeroQuant (arXiv 2206.01861). Rotations: QuaRot (arXiv 2404.00456).
"""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 127
LARGEST_BLOCK = 64  # features mixed by one rotation: larger blocks spread better and cost more
TABLE = 2**20  # entries from which a look-up table that no linear layer shares is worth quantising
SMALLEST_SCALE = 1e-30  # keeps a row of zeros from dividing by zero
ROWS_AT_ONCE = 4096  # of a weight under conversion, so the FP32 copies made on the way stay small


@cache
def _hadamard(size: int) -> Tensor:
    """[size, size], symmetric and orthogonal, entries ±1/√size; Sylvester's doubling, `size` a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix * size**-0.5


def block_size(features: int) -> int:
    """The largest power of two that divides `features`, up to `LARGEST_BLOCK`; 1 means no rotation."""
    return min(features & -features, LARGEST_BLOCK)


def rotate(rows: Tensor, rotation: Tensor | None) -> Tensor:
    """[..., features] with each block of features multiplied by `rotation` [block, block]; its own inverse."""
    if rotation is None:
        return rows
    return (rows.reshape(-1, len(rotation)) @ rotation).view(rows.shape)


def to_levels(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, features] -> int8 levels of the same shape and the scale of each row [rows, 1]: levels * scale ≈ rows."""
    scale = rows.abs().amax(-1, keepdim=True).mul_(1 / LEVELS).clamp_min_(SMALLEST_SCALE)
    return (rows / scale).round_().to(torch.int8), scale


@cache
def sums_are_exact() -> bool:
    """Whether this CPU's product of int8 adds as it should.

    Without VNNI instructions (most CPUs before 2020) oneDNN adds the products of two neighbours in 16 bits, unsigned
    (level + 128) times signed, and cuts off what does not fit. 2 * 255 * 64 fits: weights of 7 bits are added right.
    """
    most = torch.full((32, 64), LEVELS, dtype=torch.int8)
    return bool((torch._int_mm(most, most.t()) == 64 * LEVELS**2).all())


def integer_product(levels: Tensor, weight: Tensor) -> Tensor:
    """int8 [rows, in] times int8 [out, in] transposed -> the sums [rows, out], int32 (FP32 where CUDA has no kernel).

    CUDA's kernel takes only more than 16 rows and sizes that are multiples of 8: rows are padded, other sizes are
    multiplied as floats (exact up to 2²⁴).
    """
    if not levels.is_cuda:
        if sums_are_exact():
            return torch._int_mm(levels, weight.t())
        halves, rest = weight >> 1, weight & 1  # weight = 2 (weight >> 1) + (weight & 1)
        return torch._int_mm(levels, halves.t()).mul_(2).add_(torch._int_mm(levels, rest.t()))
    if weight.shape[0] % 8 or weight.shape[1] % 8:
        return levels.float() @ weight.t().float()
    rows = len(levels)
    padding = max(24 - rows, -rows % 8)
    return torch._int_mm(F.pad(levels, (0, 0, 0, padding)), weight.t())[:rows]


@dataclass(frozen=True)
class Table:
    """A weight [out, in] as int8 levels of W H, one FP32 scale a row, and the rotation H (None: no rotation)."""

    levels: Tensor
    scale: Tensor
    rotation: Tensor | None


def quantise(weight: Tensor) -> Table:
    """The INT8 table of an FP32 weight [out, in], a few thousand rows at a time."""
    size = block_size(weight.shape[1])
    rotation = None if size == 1 else _hadamard(size).to(weight.device)
    levels = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(weight.shape[0], 1, device=weight.device)
    for start in range(0, len(weight), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        levels[part], scale[part] = to_levels(rotate(weight[part].detach().float(), rotation))
    return Table(levels, scale[:, 0], rotation)


class _Int8Table(nn.Module):
    """What the INT8 linear layer and look-up share: the table as buffers, and a stand-in for `weight`."""

    levels: Tensor
    scale: Tensor
    rotation: Tensor | None

    def hold(self, table: Table) -> None:
        self.register_buffer("levels", table.levels)
        self.register_buffer("scale", table.scale)
        self.register_buffer("rotation", table.rotation, persistent=False)

    @property
    def weight(self) -> Tensor:
        """A stand-in of the weight's shape, dtype and device, which is what models ask their layers' weights for.

        It occupies one number and its values are NaN, so arithmetic with it shows: for the values call `dequantised`.
        """
        nothing = torch.full((), torch.nan, dtype=self.scale.dtype, device=self.levels.device)
        return nothing.expand(self.levels.shape)

    def dequantised(self) -> Tensor:
        """The FP32 weight [out, in] that the table stands for."""
        return rotate(self.levels * self.scale.float()[:, None], self.rotation)


class _Int8Product(_Int8Table):
    """What linear layers with an INT8 table share: its sizes and a bias."""

    def __init__(self, table: Table, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = table.levels.shape
        self.hold(table)
        self.bias: nn.Parameter | None
        self.register_parameter("bias", bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Linear(_Int8Product):
    """`nn.Linear` (and transformers' Conv1D) with an INT8 table; activations are quantised row by row while running."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], FP32."""
        rows = rotate(x.reshape(-1, self.in_features), self.rotation)
        levels, scale = to_levels(rows)
        out = (integer_product(levels, self.levels) * self.scale).mul_(scale)  # t s (q Qᵀ)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


class Int8Embedding(_Int8Table, nn.Embedding):  # type: ignore[override]
    """`nn.Embedding` whose rows are INT8 and become FP32 when looked up. Made by `_int8_embedding` only."""

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., features], FP32."""
        return rotate(F.embedding(ids, self.levels) * F.embedding(ids, self.scale[:, None]), self.rotation)


def _int8_class(kind: type[nn.Embedding]) -> type[nn.Embedding]:
    """`kind` with Int8Embedding as its base: what a subclass (BART's, which scales) calls as `super()` is INT8 then."""
    return Int8Embedding if kind is nn.Embedding else type(f"Int8{kind.__name__}", (kind, Int8Embedding), {})


def _int8_embedding(embedding: nn.Embedding, table: Table) -> nn.Embedding:
    made = copy.deepcopy(embedding, {id(embedding.weight): None})
    del made.weight
    made.__class__ = _int8_class(type(embedding))
    assert isinstance(made, Int8Embedding), type(made)
    made.hold(table)
    return made


def to_int8(model: nn.Module) -> nn.Module:
    """A copy of the FP32 `model` with every linear layer and every large or tied look-up table in INT8.

    What stays FP32 (norms, biases, small tables) is shared with `model`, which is not changed. Tied weights share one
    table.
    """
    tables: dict[int, Table] = {}

    def table_of(weight: Tensor, transposed: bool = False) -> Table:
        if id(weight) not in tables:
            tables[id(weight)] = quantise(weight.t() if transposed else weight)
        return tables[id(weight)]

    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    modules = list(model.modules())
    for module in modules:
        if type(module) is nn.Linear:  # exactly: a subclass may compute something else
            memo[id(module)] = Int8Linear(table_of(module.weight), module.bias)
        elif _is_conv1d(module):
            memo[id(module)] = Int8Linear(table_of(module.weight, transposed=True), module.bias)
    for module in modules:
        if isinstance(module, nn.Embedding) and module.max_norm is None:
            large = type(module) is nn.Embedding and module.weight.numel() >= TABLE
            if large or id(module.weight) in tables:
                memo[id(module)] = _int8_embedding(module, table_of(module.weight))
    return copy.deepcopy(model, memo).train(model.training)


def _is_conv1d(module: Any) -> TypeGuard[Any]:
    """transformers' Conv1D, a linear layer whose weight is [in, out]: known by name and layout, not by import."""
    return type(module).__name__ == "Conv1D" and module.weight.shape == (getattr(module, "nx", 0), module.nf)
