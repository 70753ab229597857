"""INT4 inference over torch's own packed product: weights in 4 bits, activations in BF16.

    y = x Wᵀ,     W[o, i] ≈ (q[o, i] - 8) s[o, g] + z[o, g],     g = i // 32

q is in 0..15; every group of 32 neighbours along the input has its scale s and middle z in BF16, found once: from the
group's range, shrunk a little or fitted again where that lowers the squared error. Output heads and large or tied
look-up tables are in INT8 instead, one scale a row: 4 bits there cost most (every token is looked up in them and
compared with them) and save least, since a look-up reads one row. What does not divide into groups stays BF16.

Groups: ZeroQuant (arXiv 2206.01861); weights only: GPTQ (arXiv 2210.17323); clipping: OmniQuant (arXiv 2308.13137).
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfviz.inference.precision.int8 import ROWS_AT_ONCE
from tfviz.inference.precision.int8_weights import with_rounded_weights

GROUP = 32
OUTPUTS = 16  # the packed product takes output sizes that are multiples of this
SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of a group's range: values beyond are cut off, the others come out finer
MANY_ROWS = 512  # from which turning the weight into BF16 first is faster than the packed product, measured on a CPU


def fits(weight: Tensor) -> bool:
    """Whether a weight [out, in] divides into what the packed product takes."""
    return weight.dim() == 2 and weight.shape[0] % OUTPUTS == 0 and weight.shape[1] % GROUP == 0


def to_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """FP32 [out, in] -> levels 0..15 int32 [out, in], and scale and middle of each group, BF16 [in / 32, out, 2]."""
    groups = weight.float().reshape(len(weight), -1, GROUP)  # [out, group, 32]
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best = (torch.full_like(low, torch.inf), low, low, groups)  # squared error, scale, middle, levels
    for shrink in SHRINKS:
        scale = (high - low) * (shrink / 15)
        tried = _rounded(groups, scale, (low + high + scale) / 2)  # level 8 is 7.5 steps above the lowest, and half one
        best = _better(best, tried)
        best = _better(best, _rounded(groups, *_fitted(groups, tried[3])))
    _, scale, middle, levels = best
    scale = scale.masked_fill(~groups.isfinite().all(-1, keepdim=True), torch.nan)  # levels would hide it
    pairs = torch.cat((scale, middle), dim=-1).transpose(0, 1)  # [group, out, 2]
    return levels.add(8).reshape(weight.shape).to(torch.int32), pairs.bfloat16().contiguous()


_Rounded = tuple[Tensor, Tensor, Tensor, Tensor]


def _rounded(groups: Tensor, scale: Tensor, middle: Tensor) -> _Rounded:
    """Squared error of each group, scale and middle as BF16 holds them, and the nearest levels -8..7."""
    scale, middle = scale.clamp_min(1e-8).bfloat16().float(), middle.bfloat16().float()
    levels = ((groups - middle) / scale).round_().clamp_(-8, 7)
    return (levels * scale + middle - groups).square_().sum(-1, keepdim=True), scale, middle, levels


def _better(one: _Rounded, other: _Rounded) -> _Rounded:
    better = other[0] < one[0]
    error, scale, middle, levels = (torch.where(better, new, old) for new, old in zip(other, one, strict=True))
    return error, scale, middle, levels


def _fitted(groups: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and middle by least squares: those that suit the levels which were found with others."""
    off = levels - levels.mean(-1, keepdim=True)
    scale = (off * groups).sum(-1, keepdim=True) / off.square().sum(-1, keepdim=True).clamp_min(1.0)
    return scale, groups.mean(-1, keepdim=True) - scale * levels.mean(-1, keepdim=True)


def pack(levels: Tensor) -> Tensor:
    """int32 [out, in] in the order in which this device's product reads it, two levels a byte."""
    if not levels.is_cuda:
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, 2)  # in tiles of 2 x 16 inputs


def unpack(packed: Tensor, block: int) -> Tensor:
    """The CPU's order taken back: uint8 [out, in / 2] -> levels [out, in], uint8.

    Outputs lie in blocks, input by input; a byte holds outputs j (low half) and j + block / 2 of its block.
    """
    n_out, n_in = packed.shape[0], packed.shape[1] * 2
    bytes_ = packed.view(n_out // block, n_in, block // 2)
    return torch.cat((bytes_ & 15, bytes_ >> 4), dim=-1).transpose(1, 2).reshape(n_out, n_in)


@cache
def packed_block() -> int | None:
    """Outputs in one block of this processor's order (64 with AVX-512, 32 with AVX2); None: it is another order."""
    levels = torch.arange(64 * GROUP, dtype=torch.int32).mul_(7).remainder_(16).view(GROUP, 64).t().contiguous()
    packed = pack(levels)
    return next((block for block in (64, 32) if torch.equal(unpack(packed, block), levels.to(torch.uint8))), None)


def packed_product(rows: Tensor, packed: Tensor, groups: Tensor) -> Tensor:
    """BF16 [rows, in] times a packed weight [out, in] transposed -> BF16 [rows, out]."""
    rows = rows.contiguous()  # the products take nothing else; a norm's output may be part of wider rows
    if rows.is_cuda:
        return torch.ops.aten._weight_int4pack_mm(rows, packed, GROUP, groups)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, GROUP, groups)


class Int4Linear(nn.Module):
    """`nn.Linear` (and transformers' Conv1D) whose weight is packed INT4; BF16 in, BF16 out."""

    packed: Tensor
    groups: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        parts = [to_groups(weight[at : at + ROWS_AT_ONCE].detach()) for at in range(0, len(weight), ROWS_AT_ONCE)]
        self.register_buffer("packed", pack(torch.cat([levels for levels, _ in parts])))
        self.register_buffer("groups", torch.cat([pairs for _, pairs in parts], dim=1).contiguous())
        self.bias: nn.Parameter | None
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:
        """A stand-in with the weight's shape, dtype and device; its values are NaN: for those call `dequantised`."""
        nothing = torch.full((), torch.nan, dtype=torch.bfloat16, device=self.packed.device)
        return nothing.expand(self.out_features, self.in_features)

    def dequantised(self) -> Tensor:
        """The FP32 weight [out, in] that the levels stand for, rounded as BF16 holds it."""
        return self._restored().float()

    def _restored(self) -> Tensor:
        """BF16 [out, in]; by one product with the identity where the packed order is not known."""
        block = self._block()
        if block is None:
            one_hot = torch.eye(self.in_features, dtype=torch.bfloat16, device=self.packed.device)
            return self._product(one_hot).t()
        levels = unpack(self.packed, block).view(self.out_features, -1, GROUP)
        scale, middle = self.groups.transpose(0, 1).unsqueeze(2).unbind(-1)  # [out, group, 1] each
        return torch.addcmul(middle, levels.bfloat16() - 8, scale).reshape(self.out_features, self.in_features)

    def _block(self) -> int | None:
        """Outputs in a block of the packed order; None where it is not one that `unpack` takes back."""
        block = None if self.packed.is_cuda else packed_block()
        return None if block is None or self.out_features % block else block

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], BF16."""
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        many = len(rows) >= MANY_ROWS and self._block() is not None
        out = F.linear(rows, self._restored()) if many else self._product(rows)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        return packed_product(rows, self.packed, self.groups)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def to_int4(model: nn.Module) -> nn.Module:
    """A BF16 copy of the FP32 `model` with INT4 linear layers, and heads and large or tied look-up tables in INT8.

    `model` is not changed. Tied weights share one table.
    """
    return with_rounded_weights(model, lambda weight, bias: Int4Linear(weight, bias) if fits(weight) else None)
