"""A decode step written flat: `model.decode(ids, cache=cache)` for one new token a row, without the modules around it.

So little is computed for one token that calling modules, looking up their weights, building masks and looking for
padding cost more than the arithmetic. Here a layer is written out once over weights that were looked up before, and
positions come from a table. The cache is the model's own, so one may change between the two ways at any step.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.model import KVCache, MultiHeadAttention, Transformer
from tfviz.model.attention_call import current_call
from tfviz.model.decoder import DecoderLayer
from tfviz.model.masks import find_padding
from tfviz.model.overflow import keep_nan
from tfviz.model.positions import Rotation
from tfviz.model.residual import PostNorm

Row = Float[Tensor, "batch d_model"]
Heads = Float[Tensor, "batch head 1 dim"]
Affine = tuple[Tensor, Tensor | None]  # weight and bias of a projection


class _Attention(NamedTuple):
    q: Affine
    k: Affine
    v: Affine
    o: Affine
    head_dim: int
    scale: float | None
    grouped: bool
    enter: Callable[[Tensor], Tensor] | None
    leave: Callable[[Tensor, Tensor], Tensor]

    def heads(self, projection: Affine, x: Row) -> Heads:
        return F.linear(x, *projection).view(x.shape[0], -1, 1, self.head_dim)

    def attend(self, q: Heads, k: Tensor, v: Tensor, allowed: Tensor | None = None) -> Row:
        """The newest token sees every key but the memory's padding, so no causal mask is needed."""
        heads = F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, scale=self.scale, enable_gqa=self.grouped
        )  # [batch, head, 1, dim]
        keep_nan(heads, q)
        if allowed is not None:  # zeros for a source that is all padding
            heads = heads.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
        return F.linear(heads.flatten(1), *self.o)


class _Layer(NamedTuple):
    own: _Attention
    cross: _Attention | None
    hidden: Callable[[Tensor], Tensor]
    w_2: Affine
    enter: Callable[[Tensor], Tensor] | None
    leave: Callable[[Tensor, Tensor], Tensor]


class FlatDecoder:
    """The steps of one generation: `room` is how many positions it may come to. No weight is copied."""

    def __init__(self, model: Transformer, room: int, device: torch.device) -> None:
        assert model.decoder is not None
        self.model, self.decoder, self.pad_id, self.room = model, model.decoder, model.config.pad_id, room
        positions = torch.arange(room, device=device)[None]
        scheme = model.decoder.embedding.positions
        dtype = model.decoder.embedding.tokens.table.weight.dtype
        nothing = torch.zeros(1, room, model.config.d_model, dtype=dtype, device=device)
        self.added = scheme.add(nothing, positions)[0]  # [room, d_model]: what each position adds
        self.rotation = scheme.rotation(positions)
        biased = scheme.bias(positions[:, :1], positions[:, :1]) is not None
        plain = all(type(module) is nn.Linear for module in _projections(model))
        self.suits_model = plain and not biased and model.config.window is None
        self.layers = [_looked_up(layer) for layer in model.decoder.layers] if self.suits_model else []

    def suits(self, cache: KVCache, ids: Int[Tensor, "batch new"]) -> bool:
        """Whether this step can be made here: one token a row, no padding, nobody watching, flash attention."""
        call = current_call()
        if not self.suits_model or self.model.training or ids.shape[1] != 1 or cache.padding is not None:
            return False
        if call.watch is not None or call.tap is not None or call.kernel != "flash":
            return False
        return 0 < cache.length < self.room and find_padding(ids, self.pad_id) is None

    def step(self, ids: Int[Tensor, "batch 1"], cache: KVCache) -> Float[Tensor, "batch vocab"]:
        """Logits after `ids`, which `cache` (not empty) is extended by."""
        at, embedding, rotation = cache.length, self.decoder.embedding, self.rotation
        x = embedding.norm(embedding.tokens(ids)[:, 0] + self.added[at])
        if rotation is not None:
            rotation = Rotation(rotation.cos[:, :, at : at + 1], rotation.sin[:, :, at : at + 1], rotation.interleaved)
        allowed = None if cache.memory_mask is None else ~cache.memory_mask
        cache.see(1, None)
        for i, (own, cross, hidden, w_2, enter, leave) in enumerate(self.layers):
            y = x if own.enter is None else own.enter(x)
            q, k, v = own.heads(own.q, y), own.heads(own.k, y), own.heads(own.v, y)
            if rotation is not None:
                q, k = rotation(q), rotation(k)
            k, v = cache.self_attention[i].extend(k, v)
            x = own.leave(x, own.attend(q, k, v))
            if cross is not None:
                q = cross.heads(cross.q, x if cross.enter is None else cross.enter(x))
                k, v = cache.cross_attention[i].read()
                x = cross.leave(x, cross.attend(q, k, v, allowed))
            x = leave(x, F.linear(hidden(x if enter is None else enter(x)), *w_2))
        return self.model.output(self.decoder.norm(x))


def _looked_up(layer: nn.Module) -> _Layer:
    assert isinstance(layer, DecoderLayer)
    cross = None
    if layer.cross_attention is not None and layer.cross_residual is not None:
        cross = _attention(layer.cross_attention, layer.cross_residual)
    own, network = _attention(layer.attention, layer.attention_residual), layer.feed_forward
    return _Layer(own, cross, network.hidden, _affine(network.w_2), *layer.feed_forward_residual.looked_up())


def _attention(of: MultiHeadAttention, residual: PostNorm) -> _Attention:
    q, k, v, o = (_affine(linear) for linear in (of.w_q, of.w_k, of.w_v, of.w_o))
    return _Attention(q, k, v, o, of.head_dim, of.scale, of.n_kv_heads != of.n_heads, *residual.looked_up())


def _affine(linear: nn.Linear) -> Affine:
    return linear.weight, linear.bias


def _projections(model: Transformer) -> list[nn.Module]:
    """Everything whose weight is read here directly; another class than nn.Linear (INT8) computes something else."""
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            found += [module.w_q, module.w_k, module.w_v, module.w_o]
        if isinstance(module, DecoderLayer):
            found.append(module.feed_forward.w_2)
    return found
