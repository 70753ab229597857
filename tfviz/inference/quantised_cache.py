"""Keys and values as small whole numbers: a group of them shares a scale and a zero point.

    scale = (max - min) / (2^bits - 1),    code = round((x - min) / scale),    x' = code * scale + min

Groups lie along head_dim (per token: each token can be written at once) or along the tokens (per channel: a channel
whose numbers are large spoils no other). KIVI (https://arxiv.org/abs/2402.02750) finds such channels in keys, so it
quantises keys per channel and values per token.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from tfviz.errors import TfvizError

Axis = Literal["token", "channel"]
GROUP = 32  # numbers that share a scale and a zero point, both FP16
BITS = (4, 8)


@dataclass(frozen=True, eq=False)
class Quantised:
    """Keys or values of one layer, packed: two INT4 codes lie in one byte."""

    codes: UInt8[Tensor, "head line byte"]
    scale: Float[Tensor, "head line group"]
    low: Float[Tensor, "head line group"]
    bits: int
    axis: str
    length: int  # numbers of one line: head_dim (per token) or tokens (per channel)
    group: int

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.codes, self.scale, self.low))

    def dequantise(self) -> Float[Tensor, "head pos dim"]:
        codes = _unpacked(self.codes, self.length, self.bits).float()
        scale, low = (_spread(part.float(), self.length, self.group) for part in (self.scale, self.low))
        x = codes * scale + low  # x' = code * scale + min
        return x if self.axis == "token" else x.transpose(-2, -1)


def quantise(x: Float[Tensor, "head pos dim"], bits: int, axis: Axis = "token", group: int = GROUP) -> Quantised:
    """Packs keys or values. `ValueError` for other widths than 4 and 8 bits."""
    if bits not in BITS:
        raise TfvizError("cache.variants.error.bits", bits=bits)
    lines = x.float() if axis == "token" else x.float().transpose(-2, -1)  # [head, line, number]
    length = lines.shape[-1]
    missing = -length % group
    padded = torch.cat([lines, lines[..., -1:].expand(*lines.shape[:-1], missing)], dim=-1)  # adds no new extreme
    groups = padded.unflatten(-1, (-1, group))  # [head, line, group, number]
    low = groups.amin(-1).half()
    scale = ((groups.amax(-1) - low.float()) / (2**bits - 1)).half()
    step = _spread(scale.float(), length, group).clamp_min(torch.finfo(torch.float16).tiny)
    codes = ((lines - _spread(low.float(), length, group)) / step).round().clamp(0, 2**bits - 1)
    return Quantised(_packed(codes.to(torch.uint8), bits), scale, low, bits, axis, length, group)


def _spread(x: Float[Tensor, "head line group"], length: int, group: int) -> Float[Tensor, "head line number"]:
    """A group's number for each of its members."""
    return x.repeat_interleave(group, dim=-1)[..., :length]


def _packed(codes: UInt8[Tensor, "head line number"], bits: int) -> UInt8[Tensor, "head line byte"]:
    if bits == 8:
        return codes
    even = F.pad(codes, (0, codes.shape[-1] % 2))
    return even[..., ::2] | (even[..., 1::2] << 4)


def _unpacked(codes: UInt8[Tensor, "head line byte"], length: int, bits: int) -> UInt8[Tensor, "head line number"]:
    if bits == 8:
        return codes
    return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)[..., :length]
