"""Every head of a layer as a small picture, without ever holding the layer's n x n weights at once.

A thumbnail cell is the *maximum* weight of its block of cells (a mean would wash out the thin lines that heads are made
of). Codes are uint8: 0 = blocked, 1..255 = sqrt(weight), so that small weights keep their resolution.
"""

from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from tfviz.model.attention import ScoreRule, attention_weights
from tfviz.model.attention_call import AttentionRecord
from tfviz.model.masks import make_causal_mask

SIDE = 24  # most rows and columns of a thumbnail
CHUNK_BYTES = 4 * 1024 * 1024  # of scores held at a time


def encode_weights(weights: Float[Tensor, "*cells"], blocked: Bool[Tensor, "*cells"]) -> UInt8[Tensor, "*cells"]:
    """0 = blocked; otherwise 1 + round(254 sqrt(weight))."""
    codes = (weights.clamp(0, 1).sqrt() * 254).round() + 1
    return codes.to(torch.uint8).masked_fill(blocked, 0)


def thumbnails(record: AttentionRecord) -> UInt8[np.ndarray, "head row column"]:
    """One layer's heads, at most `SIDE` x `SIDE` each."""
    query, key = record.query[:1].float(), record.key[:1].float()
    n_heads, n_query, n_key = query.shape[1], query.shape[2], key.shape[2]
    rows, columns = ceil(n_query / SIDE), ceil(n_key / SIDE)  # cells a block
    blocked = _blocked(record, n_query, n_key)
    step = max(rows, CHUNK_BYTES // (4 * n_heads * n_key) // rows * rows)  # query rows at a time, whole blocks
    strips = []
    for start in range(0, n_query, step):
        stop = min(start + step, n_query)
        seen = min(n_key, n_key - n_query + stop) if record.rule.causal else n_key  # later keys are all blocked
        block = blocked[..., start:stop, :seen]
        bias = None if record.rule.bias is None else record.rule.bias[:1, :, start:stop, :seen].float()
        rule = ScoreRule(scale=record.rule.scale, softcap=record.rule.softcap, bias=bias)
        mask = block if bool(block.any()) else None
        weights = attention_weights(query[:, :, start:stop], key[:, :, :seen], mask, rule)[0]
        codes = encode_weights(_pool_max(weights, rows, columns), _pool_all(block[0], rows, columns))
        strips.append(F.pad(codes, (0, ceil(n_key / columns) - codes.shape[-1])))
    return torch.cat(strips, dim=-2).cpu().numpy()


def _blocked(record: AttentionRecord, n_query: int, n_key: int) -> Bool[Tensor, "1 #head query key"]:
    device = record.query.device
    blocked = torch.zeros(1, 1, n_query, n_key, dtype=torch.bool, device=device)
    if record.rule.causal:
        blocked = blocked | make_causal_mask(n_query, n_key, device=device)
    return blocked if record.mask is None else blocked | record.mask[:1]


def _pool_max(x: Float[Tensor, "head query key"], rows: int, columns: int) -> Float[Tensor, "head row column"]:
    n_query, n_key = x.shape[-2:]
    x = F.pad(x, (0, -n_key % columns, 0, -n_query % rows))
    return x.unflatten(-2, (-1, rows)).amax(-2).unflatten(-1, (-1, columns)).amax(-1)


def _pool_all(x: Bool[Tensor, "#head query key"], rows: int, columns: int) -> Bool[Tensor, "#head row column"]:
    """True where every cell of the block is blocked."""
    n_query, n_key = x.shape[-2:]
    x = F.pad(x, (0, -n_key % columns, 0, -n_query % rows), value=True)
    return x.unflatten(-1, (-1, columns)).all(-1).unflatten(-2, (-1, rows)).all(-2)
