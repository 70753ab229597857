"""What passes through the layers of a model: the numbers of one position, read off its matrices and its config."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from torch import nn

from tfviz.config import TransformerConfig
from tfviz.inference.memory_shapes import Forward, LayerShape
from tfviz.inference.precision.int8 import _is_conv1d
from tfviz.sources.activation_cost import activation_tensors
from tfviz.sources.cache_config import _dims, _heads, _kv_heads, layer_configs
from tfviz.sources.layer_blocks import is_norm
from tfviz.sources.weight_shapes import HEAD, LAYER, Held, held_by, kind_of

RMS = re.compile(r"RMS|T5LayerNorm")
POSITIONS = re.compile(r"(^|\.)(wpe|embed_positions)\.")  # looked up in the pass itself, which holds them to its end


def forward_of(model: nn.Module, config: Any) -> Forward:
    """The layers by what passes through them, read off the shapes of their matrices and the config's heads."""
    whole = config if isinstance(config, TransformerConfig) else config.get_text_config(decoder=True)
    configs = _layer_configs(whole)
    text = configs[0]
    d_model = _number(text, "d_model", "hidden_size")
    groups: dict[tuple[str, int], list[Held]] = {}
    everything = held_by(model)
    for held in everything:
        found = LAYER.match(held.name)
        if found:
            groups.setdefault((found[1], int(found[2])), []).append(held)
    two = _family(config) == "encoder-decoder"
    experts = _number(text, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 1
    pre = _is_pre(model, config)
    turns = any("rotary" in type(one).__name__.lower() for one in model.modules())
    outside = d_model * any(POSITIONS.search(one.name) for one in everything)
    shapes: Counter[LayerShape] = Counter()
    for (path, index), inside in groups.items():
        stack = ("decoder" if "decoder" in path else "encoder") if two else "self"
        heads = _head_numbers(config, configs[min(index, len(configs) - 1)], stack)
        layer = _layer(inside, text, d_model, stack, experts, heads)
        rope = 2 * layer.query // layer.heads if turns and layer.heads else 0
        biased = any(f"{path}." in one.name and "relative_attention_bias" in one.name for one in everything)
        shapes[replace(layer, pre=pre, rope=rope, biased=biased, beside=outside)] += 1
    layers = {one: n for one, n in shapes.items() if one.widened or one.heads}
    meant = getattr(text, "num_hidden_layers", None)
    if not two and isinstance(meant, int) and sum(layers.values()) == 1 < meant:  # ALBERT: one layer, many times
        layers = dict.fromkeys(layers, meant)
    shifted = any("final_logits_bias" in name for name, _ in model.named_buffers())
    return Forward(tuple(layers.items()), d_model, _vocabulary(model, text), *_table(model), shifted)


def _layer_configs(text: Any) -> list[Any]:
    """A config for each layer; one for them all where it does not say how many there are."""
    counted = not isinstance(text, TransformerConfig) and _number(text, "num_decoder_layers", "num_hidden_layers")
    return layer_configs(text) if counted else [text]


def _is_pre(model: nn.Module, config: Any) -> bool:
    """Pre-norm models need a norm at their end, after all layers; the paper's way has none there."""
    if isinstance(config, TransformerConfig):
        return config.placement == "pre"
    last = [name for name, one in model.named_modules() if is_norm(one) and not LAYER.match(f"{name}.")]
    return any("embed" not in name and not HEAD.search(name) for name in last)


def _table(model: nn.Module) -> tuple[int, bool]:
    """(numbers of the largest look-up table, whether a linear layer shares it)"""
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding)]
    largest = max(tables, key=lambda one: one.weight.numel(), default=None)
    if largest is None:
        return 0, False
    tied = any(isinstance(one, nn.Linear) and one.weight is largest.weight for one in model.modules())
    return largest.weight.numel(), tied


def _layer(
    inside: list[Held], text: Any, d_model: int, stack: str, experts: int, of_heads: tuple[int, int, int, int]
) -> LayerShape:
    parts: dict[str, list[tuple[int, ...]]] = {"feed_forward": [], "experts": []}
    attention, norms, rms, named = False, 0, False, ""
    for held in inside:
        kind, shape = kind_of(held, None), tuple(held.parameter.shape)
        if kind in parts and 1 < len(shape) < 4 - (kind == "feed_forward"):
            parts[kind].append(shape[::-1] if any(_is_conv1d(one) for one in held.owners) else shape)
        norms += kind == "norm" and held.name.endswith("weight") and shape == (d_model,)
        rms = rms or (kind == "norm" and bool(RMS.search(type(held.owners[0]).__name__)))
        attention, named = attention or kind == "attention", f"{named} {held.name.lower()}"
    widened, hidden = _widths(parts["feed_forward"], d_model)
    wide, narrow = _expert_widths(parts["experts"], d_model)
    heads, query, key, value = of_heads if attention else (0, 0, 0, 0)
    bent, alive = activation_tensors(_activation(text))
    cross = stack == "decoder" and bool(re.search("cross|encdec|encoder_attn", named))
    widened, hidden = widened + experts * wide, hidden + experts * narrow
    return LayerShape(
        d_model,
        heads,
        query,
        key,
        value,
        widened,
        hidden,
        norms,
        rms=rms and not isinstance(text, TransformerConfig),  # ours is fused
        bent=bent,
        alive=alive,
        headed=bool(re.search(r"\bq_norm\b", named)),
        given=d_model * any("attn.c_proj" in held.name for held in inside),
        stack=stack,
        cross=cross,
    )


def _activation(text: Any) -> str:
    names = ("hidden_act", "activation_function", "dense_act_fn", "feed_forward")  # the last is ours
    return next((str(one) for one in (getattr(text, name, None) for name in names) if one), "")


def _widths(shapes: list[tuple[int, ...]], d_model: int) -> tuple[int, int]:
    """(outputs of the products that read d_model together, inputs of the one that gives it back)"""
    if len(shapes) > 1 and all(one == (d_model, d_model) for one in shapes):  # d_ff = d_model
        return d_model * (len(shapes) - 1), d_model
    narrowing = [columns for rows, columns in shapes if rows == d_model and columns != d_model]
    widths = {*narrowing, *(2 * one for one in narrowing)}  # gate and up may be one matrix; a router is neither
    return sum(rows for rows, columns in shapes if columns == d_model and rows in widths), sum(narrowing)


def _expert_widths(shapes: list[tuple[int, ...]], d_model: int) -> tuple[int, int]:
    """The same of one expert: of matrices that lie together [expert, ., .], or of modules each with its own."""
    stacked = {tuple(sorted(set(one[1:]) - {d_model}) or [d_model]) for one in shapes if len(one) == 3}
    alone = {one for one in shapes if len(one) == 2}
    if stacked:
        widths = sorted(one[-1] for one in stacked)
        return (widths[-1] if len(widths) > 1 else 2 * widths[0]), widths[0]
    hidden = max((columns for rows, columns in alone if rows == d_model), default=0)
    return (2 * hidden if len(alone) else 0), hidden


def _head_numbers(config: Any, text: Any, stack: str) -> tuple[int, int, int, int]:
    """(query heads, numbers of a position's query, key and value)"""
    if isinstance(config, TransformerConfig):
        kv = config.kv_heads * config.width
        return config.n_heads, config.n_heads * config.width, kv, kv
    own = getattr(config, f"{stack}_attention_heads", None)  # BART and Marian: each stack has its own
    if own:
        width = _number(text, "hidden_size", "d_model")
        return own, width, width, width
    if not _number(text, "num_attention_heads"):  # no attention anywhere
        return 0, 0, 0, 0
    heads, kv_heads = _heads(text), _kv_heads(text)
    key, value = _dims(text, heads)
    return heads, heads * key, kv_heads * key, kv_heads * value


def _vocabulary(model: nn.Module, text: Any) -> int:
    """Outputs of the head, 0 where the model has none."""
    if isinstance(text, TransformerConfig):
        return text.target_vocabulary if getattr(model, "output", None) is not None else 0
    get_head: Any = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    return 0 if head is None else int(head.weight.shape[0])


def _family(config: Any) -> str:
    if isinstance(config, TransformerConfig):
        return config.family
    return "encoder-decoder" if config.is_encoder_decoder else "self"


def _number(config: Any, *names: str) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((int(one) for one in found if isinstance(one, int) and not isinstance(one, bool)), 0)
