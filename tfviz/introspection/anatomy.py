"""A sentence's way through every layer: what each projection, norm and sublayer gave, and what was added to the stream.

    pre        resid_mid = resid_pre + attention_out,          resid_post = resid_mid + feed_forward_out
    post       resid_mid = norm(resid_pre + attention_out),    resid_post = norm(resid_mid + feed_forward_out)
    parallel   resid_post = resid_pre + attention_out + feed_forward_out

Which of the three a layer follows is not looked up by the model's name: the arrays of the pass decide (placement.py).
One pass, naive kernel, FP32 copies of all layers; equal arrays are kept once (one layer's end is the next one's start).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from tfviz.config import MIB
from tfviz.errors import UnsupportedHere
from tfviz.introspection.layer_calls import Attended, LayerCall, features, is_linear, is_norm, layers_of, observe
from tfviz.introspection.layer_parts import Parts, find_activation, find_norm
from tfviz.introspection.placement import read_stream
from tfviz.introspection.projections import Projections, read_projections, weight_of
from tfviz.sources.base import LoadedModel, Prompt

Array = np.ndarray
BUDGET = 640 * MIB  # of arrays: about 600 tokens of SmolLM2; longer texts are refused


@dataclass(frozen=True)
class AttentionSeen:
    """One attention's linear parts, FP32 on the CPU."""

    query: Float[Array, "query heads*dim"]  # what the projections gave: before positions, q/k norms and pre-scaling
    key: Float[Array, "key kv_heads*dim"]
    value: Float[Array, "key kv_heads*value_dim"]
    joined: Float[Array, "query heads*value_dim"]  # what W_O read: the heads side by side
    out_weight: Float[Array, "d_model heads*value_dim"] | None  # None: held in a form that cannot be read
    out_bias: Float[Array, " d_model"] | None
    output: Float[Array, "query d_model"]  # what W_O gave


@dataclass(frozen=True)
class NormSeen:
    """One norm at work. Gemma's gain of 1 + weight is given as the gain that it is."""

    name: str  # its path inside the layer
    kind: str  # layer | rms | the name of a class that is neither
    before: Float[Array, "pos d_model"]
    after: Float[Array, "pos d_model"]
    weight: Float[Array, " d_model"] | None
    bias: Float[Array, " d_model"] | None
    eps: float


@dataclass(frozen=True)
class LayerSeen:
    """One layer of one side."""

    resid_pre: Float[Array, "pos d_model"]
    attention_out: Float[Array, "pos d_model"]  # what is added to the stream, after a norm on the branch if it has one
    resid_mid: Float[Array, "pos d_model"]  # parallel layers have no such tensor: resid_pre + attention_out
    cross_out: Float[Array, "pos d_model"] | None
    resid_cross: Float[Array, "pos d_model"] | None
    feed_forward_out: Float[Array, "pos d_model"]
    resid_post: Float[Array, "pos d_model"]
    hidden: Float[Array, "pos d_ff"] | None  # what the down projection reads; None: a mixture of experts, or unknown
    up: Float[Array, "pos d_ff"] | None  # what the activation reads; of a gated network: the gate's; None: unknown
    activation: str  # relu, gelu, gelu_tanh, silu, ... or gated: swiglu, geglu, geglu_tanh, reglu; "" if unknown
    placement: str  # pre | post | parallel | other
    norms: tuple[NormSeen, ...]
    parameters: Mapping[str, int]  # attention, cross, feed_forward, norm
    through: Float[Array, "pos d_ff"] | None = None  # of a gated network: what the gate is multiplied by


class _Table(dict[tuple[str, int], object]):
    """A table that says in a sentence what could not be read."""

    error, model = "", ""

    def __missing__(self, place: tuple[str, int]) -> object:
        raise UnsupportedHere(self.error, model=self.model, layer=place[1])


@dataclass(frozen=True)
class Anatomy:
    """By (kind, layer): kind "self", "encoder", "decoder" and for attentions "cross". `[...]` of what could not be
    read raises `UnsupportedHere`; `.get` gives None."""

    attentions: Mapping[tuple[str, int], AttentionSeen]
    layers: Mapping[tuple[str, int], LayerSeen]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once however many names it has."""
        seen = (*self.attentions.values(), *self.layers.values())
        norms = (norm for layer in self.layers.values() for norm in layer.norms)
        arrays = (value for one in (*seen, *norms) for value in vars(one).values() if isinstance(value, np.ndarray))
        return sum({id(array): array.nbytes for array in arrays}.values())


def examine(loaded: LoadedModel, prompt: Prompt) -> Anatomy:
    """One pass. `UnsupportedHere` for a text that would take more than `BUDGET`, or attention out of our sight."""
    _refuse_long(loaded, prompt)
    calls = observe(loaded, prompt)
    if not calls:
        raise UnsupportedHere("error.no_attention", model=loaded.label)
    attentions, layers = _Table(), _Table()
    attentions.error, attentions.model = "error.anatomy_attention", loaded.label
    layers.error, layers.model = "error.anatomy_layer", loaded.label
    for call in calls:
        found = read_projections(call)
        for attended, projections in found.items():
            seen = _attention(projections)
            if seen is not None:
                cross = attended is not call.attentions[0]
                attentions["cross" if cross else call.side, call.index] = seen
        layer = _layer(call, found)
        if layer is not None:
            layers[call.side, call.index] = layer
    return Anatomy(attentions, layers)  # type: ignore[arg-type]


def longest(loaded: LoadedModel) -> int:
    """Tokens that fit into `BUDGET`.

    Counted are, in every layer, the output of each projection, two rows for each norm, and what a projection reads that
    is wider than the stream: the hidden features.
    """
    inside = {one for block in layers_of(loaded) for one in block.modules()}
    norms = [max((gain.numel() for gain in one.parameters()), default=0) for one in inside if is_norm(one)]
    widths = [features(one) for one in inside if is_linear(one)]
    stream = max(norms, default=0)
    numbers = 2 * sum(norms) + sum(given + (read if read > stream else 0) for read, given in widths)
    return BUDGET // (4 * max(1, numbers))


def _refuse_long(loaded: LoadedModel, prompt: Prompt) -> None:
    n, most = max(prompt.n_tokens, len(prompt.target)), longest(loaded)
    if n > most:
        raise UnsupportedHere("error.anatomy_long", model=loaded.label, n=n, most=most)


def _attention(found: Projections) -> AttentionSeen | None:
    if found.inputs is None or found.out is None:
        return None
    query, key, value = found.inputs
    joined, output = found.out.before, found.out.after
    assert joined is not None and output is not None
    bias: Any = getattr(found.out.module, "bias", None)
    bias = None if bias is None else bias.detach().float().cpu().numpy()
    return AttentionSeen(query, key, value, joined, weight_of(found.out.module), bias, output)


def _layer(call: LayerCall, found: Mapping[Attended, Projections]) -> LayerSeen | None:
    """None where the layer's parts cannot be told apart."""
    parts = Parts(call, found)
    stream = read_stream(parts)
    if stream is None:
        return None
    up, through, activation = find_activation(parts, stream.hidden)
    return LayerSeen(
        resid_pre=stream.pre,
        attention_out=stream.attention_out,
        resid_mid=stream.mid,
        cross_out=stream.cross_out,
        resid_cross=stream.cross,
        feed_forward_out=stream.feed_forward_out,
        resid_post=stream.post,
        hidden=stream.hidden,
        up=up,
        activation=activation,
        placement=stream.placement,
        norms=tuple(NormSeen(*found) for found in map(partial(find_norm, call), parts.norms)),
        parameters=parts.parameters(),
        through=through,
    )
