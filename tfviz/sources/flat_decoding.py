"""A decode step of LLaMA's kind written flat: what transformers' modules compute for one new token, without them.

    x = x + W_o attention(rope(W_q h), K, V)          h = rms_norm(x), K and V: the cache with the new key and value
    x = x + W_down (silu(W_gate h) * W_up h)          h = rms_norm(x)
    logits = W_head rms_norm(x)

Weights are looked up before the first step, q|k|v and gate|up are one product each (fused_weights), the cache is made
ahead and written in place, rotations come from a table, and no mask is built: the newest token sees every key. Whether
a model is of this kind is read from its modules and then measured: the written-out step has to give the logits of the
model's own forward pass (`flat_step`). The prompt goes through that forward pass. RMSNorm: arXiv 1910.07467; RoPE:
arXiv 2104.09864; SwiGLU: arXiv 2002.05202; grouped heads: arXiv 2305.13245.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.errors import TfvizError
from tfviz.inference.precision.int4 import Int4Linear, packed_product
from tfviz.model.attention import ScoreRule
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attend, attention_call, current_call
from tfviz.model.overflow import keep_nan
from tfviz.sources.base import LoadedModel
from tfviz.sources.decoding import Decoding, HeldLayer
from tfviz.sources.fused_weights import joined
from tfviz.sources.stepped_decoding import SteppedDecoding
from tfviz.sources.transformers_decoding import TransformersDecoding

Hidden = Float[Tensor, "batch new d_model"]
Heads = Float[Tensor, "batch head new dim"]
Product = Callable[[Tensor], Tensor]
SPARE = 64  # positions that a new cache has beyond the prompt; it doubles when they are used up
FIXED_ROTATIONS = {"default", "linear", "llama3", "yarn"}  # whose angles do not depend on the length of the text
TRIED = 6  # tokens that a model is compared on before its step is written out
AGREE_FP32, AGREE_REDUCED = 1e-4, 0.05  # largest difference over the largest logit; relative error elsewhere


class _Norm(NamedTuple):
    """RMSNorm, x / sqrt(mean(x²) + eps) * weight. The CPU has no kernel for it but one for LayerNorm, and (x, -x) has
    mean 0 and variance mean(x²): one call of two small operators instead of seven."""

    weight: Tensor
    eps: float
    twice: Tensor | None  # (weight, weight), on the CPU

    def __call__(self, x: Tensor) -> Tensor:
        if self.twice is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        both = F.layer_norm(torch.cat((x, -x), dim=-1), self.twice.shape, self.twice, None, self.eps)
        return both.narrow(-1, 0, self.weight.shape[0])


class _Layer(NamedTuple):
    attention: nn.Module  # whom a watcher is told about
    attention_norm: _Norm
    qkv: Product
    head_norms: tuple[_Norm, _Norm] | None  # Qwen3: of each query and key
    output: Product
    feed_forward_norm: _Norm
    gate_up: Callable[[Tensor], Sequence[Tensor]]
    activation: Product
    down: Product


class FlatStep:
    """The looked-up weights of one model; nothing of one generation. It does not hold the model itself."""

    def __init__(self, model: Any) -> None:
        decoder, first = model.model, model.model.layers[0].self_attn
        self.table: nn.Module = decoder.embed_tokens
        self.layers = [_looked_up(layer) for layer in decoder.layers]
        self.norm, self.head = _norm(decoder.norm), _product(model.lm_head)
        self.rotary: Any = decoder.rotary_emb
        if self.rotary.rope_type not in FIXED_ROTATIONS:
            raise TypeError(f"rotations of the kind {self.rotary.rope_type} have no table")
        self.head_dim, self.scale = int(first.head_dim), float(first.scaling)
        self.n_kv = first.k_proj.out_features // self.head_dim
        self.n_heads = first.q_proj.out_features // self.head_dim
        self.dtype: torch.dtype = decoder.norm.weight.dtype
        self.slow_onednn = self.dtype in {torch.bfloat16, torch.float16} and decoder.norm.weight.device.type == "cpu"

    def rotation(self, room: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [room, dim] of the model's own; sin's first half negated, for `turn`."""
        positions = torch.arange(room, device=device)[None]
        cos, sin = self.rotary(torch.empty(0, dtype=self.dtype, device=device), positions)
        if cos.shape[-1] != self.head_dim:
            raise TypeError("only a part of each head is turned")
        half = torch.arange(self.head_dim, device=device) < self.head_dim // 2
        return cos[0], torch.where(half, -sin[0], sin[0])

    def turn(self, x: Heads, cos: Tensor, sin: Tensor) -> Heads:
        """RoPE: pairs (i, i + dim / 2) turned by the position's angle, x cos + (-x2, x1) sin."""
        return torch.addcmul(x * cos, x.roll(self.head_dim // 2, -1), sin)

    def __call__(self, ids: Int[Tensor, "batch new"], at: int, cache: "FlatCache") -> Float[Tensor, "batch vocab"]:
        """Logits after `ids`, which stand from position `at` on; their keys and values go into `cache`."""
        call, (batch, new) = current_call(), ids.shape
        cos, sin = cache.cos[at : at + new], cache.sin[at : at + new]
        x: Hidden = self.table(ids)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            heads = layer.qkv(layer.attention_norm(x)).view(batch, new, -1, self.head_dim).transpose(1, 2)
            turned, v = heads.split((self.n_heads + self.n_kv, self.n_kv), dim=1)
            if layer.head_norms is not None:
                q, k = turned.split((self.n_heads, self.n_kv), dim=1)
                turned = torch.cat((layer.head_norms[0](q), layer.head_norms[1](k)), dim=1)
            q, k = self.turn(turned, cos, sin).split((self.n_heads, self.n_kv), dim=1)
            keys[:, :, at : at + new], values[:, :, at : at + new] = k, v
            x = x + layer.output(self.attend(layer, call, q, keys[:, :, : at + new], values[:, :, : at + new]))
            gate, up = layer.gate_up(layer.feed_forward_norm(x))
            x = x + layer.down(layer.activation(gate) * up)
        return self.head(self.norm(x[:, -1]))

    def attend(self, layer: _Layer, call: AttentionCall, q: Heads, k: Heads, v: Heads) -> Hidden:
        """The kernel in force; a single query sees all keys, so flash takes the heads of a group as rows of one."""
        batch, _, new, _ = q.shape
        rule = ScoreRule(scale=self.scale, causal=new > 1)
        if new > 1 or call.kernel != "flash":
            output, _ = attend(layer.attention, q, k, v, None, rule)
        else:
            grouped = q.reshape(batch, self.n_kv, -1, self.head_dim)  # [batch, kv_head, head of the group, dim]
            output = keep_nan(F.scaled_dot_product_attention(grouped, k, v, scale=self.scale), grouped)
            if call.watch is not None:
                call.watch(AttentionRecord(layer.attention, q, k, v, None, rule, output.reshape_as(q), call.kernel))
        if new == 1:
            return output.reshape(batch, 1, -1)
        return output.transpose(1, 2).reshape(batch, new, -1)


class FlatCache:
    """Keys and values of every layer [batch, kv_head, room, dim] and the rotations of as many positions."""

    def __init__(self, step: FlatStep, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Begins with what a forward pass left: (key, value) [batch, kv_head, held, dim] of each layer."""
        self.step, self.room = step, 0
        self.keys, self.values = [key for key, _ in layers], [value for _, value in layers]
        held = self.keys[0].shape[2]
        self.reserve(held, held + SPARE)

    def reserve(self, held: int, needed: int) -> None:
        """Room for `needed` positions at least, twice what there was; the first `held` are kept."""
        if needed <= self.room:
            return
        self.room = max(needed, 2 * self.room)
        self.cos, self.sin = self.step.rotation(self.room, self.keys[0].device)
        self.keys, self.values = ([self._grown(one, held) for one in kind] for kind in (self.keys, self.values))

    def _grown(self, old: Tensor, held: int) -> Tensor:
        grown = old.new_empty(*old.shape[:2], self.room, old.shape[3])
        grown[:, :, :held] = old[:, :, :held]
        return grown

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.keys, self.values = ([one[rows] for one in kind] for kind in (self.keys, self.values))


class FlatDecoding(TransformersDecoding):
    """One generation by the written-out step: the prompt through the forward pass, then a token at a time."""

    def __init__(self, loaded: LoadedModel, inputs: Mapping[str, Tensor], step: FlatStep, record: bool) -> None:
        super().__init__(loaded, inputs, use_cache=True, record=record)
        self.step, self.length = step, 0
        self.flat: FlatCache | None = None

    def read(self, start: int, stop: int) -> Float[Tensor, "batch vocab"]:
        if self.flat is None:
            logits = super().read(start, stop)
            self.flat = FlatCache(self.step, [(layer.keys, layer.values) for layer in self.cache.layers])
            self.cache = None
        else:
            self.flat.reserve(start, stop)
            with one_row_products(self.step.slow_onednn and len(self.ids) == 1 and stop - start == 1):
                logits = self.step(self.ids[:, start:stop], start, self.flat)
        self.length = stop
        return logits

    def cut(self, length: int) -> int:
        """Costs nothing: what comes after is written over."""
        if not length:
            self.flat = None
        self.length = length
        return length

    @torch.inference_mode()
    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        SteppedDecoding.keep(self, rows)
        if self.flat is not None:
            self.flat.keep(rows)

    def held(self) -> list[HeldLayer]:
        if self.flat is None:
            return []
        pairs = enumerate(zip(self.flat.keys, self.flat.values, strict=True))
        n = self.length
        return [HeldLayer("self", i, k[:, :, :n], v[:, :, :n], 0, None) for i, (k, v) in pairs]


def flat_decoding(loaded: LoadedModel, inputs: Mapping[str, Tensor], record: bool) -> Decoding | None:
    """The fast way for a model of LLaMA's kind and rows without padding; None for everything else."""
    mask = inputs.get("attention_mask")
    if loaded.family != "decoder" or not loaded.has_logits or (mask is not None and not bool(mask.all())):
        return None
    step = flat_step(loaded)
    return None if step is None else FlatDecoding(loaded, inputs, step, record)


_steps: WeakKeyDictionary[nn.Module, FlatStep | None] = WeakKeyDictionary()
_writing = threading.Lock()


def flat_step(loaded: LoadedModel) -> FlatStep | None:
    """The written-out step of a resident model, made once; None where it is not what the model computes."""
    with _writing:
        if loaded.model not in _steps:
            _steps[loaded.model] = _written_out(loaded)
        return _steps[loaded.model]


@torch.inference_mode()
def _written_out(loaded: LoadedModel) -> FlatStep | None:
    model: Any = loaded.model
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not layers or any(loaded.window("self", i) is not None for i in range(len(layers))):
        return None
    try:
        step = FlatStep(model)
        return step if _agrees(loaded, step) else None
    except (AttributeError, TypeError, TfvizError):  # it lacks a part that the step is written for, or has others
        return None


def _agrees(loaded: LoadedModel, step: FlatStep) -> bool:
    """Whether the step gives the logits of the model's own forward pass, after one token and after a few."""
    model: Any = loaded.model
    ids = torch.arange(1, TRIED + 1, device=loaded.device)[None] * 37 % loaded.n_embeddings
    with attention_call(AttentionCall("flash")):
        theirs = model(input_ids=ids, use_cache=False).logits[0, 1:]
        output = model(input_ids=ids[:, :1], use_cache=True)
        cache = FlatCache(step, [(layer.keys, layer.values) for layer in output.cache.layers])
        ours = torch.cat([step(ids[:, at : at + 1], at, cache) for at in range(1, TRIED)])
    if ours.dtype == torch.float32 and loaded.precision == "fp32":
        return float((ours - theirs).abs().max()) <= AGREE_FP32 * max(1.0, float(theirs.abs().max()))
    return float((ours.float() - theirs.float()).norm()) <= AGREE_REDUCED * float(theirs.float().norm())


def _looked_up(layer: Any) -> _Layer:
    """`AttributeError` or `TypeError` for a layer that is built otherwise."""
    attention, network = layer.self_attn, layer.mlp
    norms = tuple(getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    _only(layer, {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
    _only(attention, {"q_proj", "k_proj", "v_proj", "o_proj", *(["q_norm", "k_norm"] if all(norms) else [])})
    _only(network, {"gate_proj", "up_proj", "down_proj", "act_fn"})
    return _Layer(
        attention=attention,
        attention_norm=_norm(layer.input_layernorm),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=(_norm(norms[0]), _norm(norms[1])) if all(norms) else None,
        output=_product(attention.o_proj),
        feed_forward_norm=_norm(layer.post_attention_layernorm),
        gate_up=_apart(network.gate_proj, network.up_proj),
        activation=F.silu if isinstance(network.act_fn, nn.SiLU) else network.act_fn,
        down=_product(network.down_proj),
    )


def _only(module: nn.Module, names: set[str]) -> None:
    found = {name for name, _ in module.named_children()}
    if found != names:
        raise TypeError(f"parts {sorted(found)} where {sorted(names)} are written out")


def _norm(module: Any) -> _Norm:
    weight: Tensor = module.weight
    return _Norm(weight, module.variance_epsilon, torch.cat((weight, weight)) if weight.device.type == "cpu" else None)


def _product(module: Any) -> Product:
    """x Wᵀ + b over the looked-up weight; a layer of another class (INT8, INT4) does it itself."""
    if type(module) is not nn.Linear:
        return module.forward
    weight, bias = module.weight, module.bias
    return lambda x: F.linear(x, weight, bias)


def _together(*modules: Any) -> Product | None:
    """The outputs of all, one after another, by one product; None where their weights do not lie side by side."""
    if all(type(module) is nn.Linear for module in modules):
        weight, biases = joined([module.weight for module in modules]), [module.bias for module in modules]
        if weight is not None and len({bias is None for bias in biases}) == 1:
            bias = None if biases[0] is None else torch.cat(biases)
            return lambda x: F.linear(x, weight, bias)
    if all(type(module) is Int4Linear and module.bias is None for module in modules):
        packed = joined([module.packed for module in modules])
        if packed is not None:
            groups = torch.cat([module.groups for module in modules], dim=1).contiguous()
            return lambda x: packed_product(x.flatten(0, -2), packed, groups).unflatten(0, x.shape[:-1])
    return None


def _joined(*modules: Any) -> Product:
    parts = [_product(module) for module in modules]
    return _together(*modules) or (lambda x: torch.cat([part(x) for part in parts], dim=-1))


def _apart(*modules: Any) -> Callable[[Tensor], Sequence[Tensor]]:
    parts, whole, sizes = [_product(module) for module in modules], _together(*modules), _sizes(modules)
    return (lambda x: [part(x) for part in parts]) if whole is None else (lambda x: whole(x).split(sizes, dim=-1))


def _sizes(modules: Sequence[Any]) -> list[int]:
    return [module.out_features for module in modules]


_inside, _was_on, _counting = 0, True, threading.Lock()


@contextmanager
def one_row_products(wanted: bool) -> Iterator[None]:
    """Without oneDNN, which is half as fast as PyTorch's own product for one row in BF16; the switch is the process's,
    so the last one out turns it on again."""
    global _inside, _was_on
    if not wanted:
        yield
        return
    with _counting:
        if not _inside:
            _was_on = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags warns about GPUs each time
            torch._C._set_mkldnn_enabled(False)
        _inside += 1
    try:
        yield
    finally:
        with _counting:
            _inside -= 1
            if not _inside:
                torch._C._set_mkldnn_enabled(_was_on)
