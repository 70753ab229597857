"""How many parameters a model has, of which kind and shape, from its config alone: nothing is loaded.

The model is built on PyTorch's "meta" device, where a tensor has a shape and no bytes: 671 billion parameters take a
tenth of a second. A pasted config is data: only entries that transformers' own config class of that model_type has are
handed on, each of a plain type and within limits; code of a repository is never run, and nothing is looked up.

A model_type that transformers lacks is counted by a formula, and said to be:

    V d (1 or 2) + layers (d (h + 2 h_kv) d_k + h d_k d + (2 or 3) d d_ff + 2 d) + d
"""

import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tfviz.config import PRESETS, TransformerConfig
from tfviz.errors import TfvizError
from tfviz.inference.memory_plan import Forward, LayerShape, Matrix, Model, Weights, counted
from tfviz.inference.precision.cast import _any_part, _declared_fp32
from tfviz.inference.precision.int8 import TABLE, _is_conv1d
from tfviz.model.transformer import Transformer
from tfviz.sources.base import LoadedModel
from tfviz.sources.cache_config import (
    DEEPEST,
    LAYER_COUNTS,
    MOST_LAYERS,
    TEXT_PARTS,
    _dims,
    _heads,
    _kv_heads,
    _misfit,
    _name,
    _plain,
    _shown,
    parsed,
    shape_from,
    shape_of,
    shape_of_entry,
)
from tfviz.sources.catalog import CatalogEntry
from tfviz.sources.catalog_configs import config_of
from tfviz.sources.huggingface import _classes
from tfviz.sources.layer_blocks import is_norm
from tfviz.sources.locate import check_config
from tfviz.sources.scratch import ScratchModel

SECONDS = 5.0  # that a model on paper may take
LARGEST, MOST_PARTS, MOST_ENTRIES, MOST_LETTERS = 1 << 28, 4096, 1000, 100
PART_COUNT = re.compile(r"(layer|block|expert|head|group|code)s?(_|$)")  # numbers that models count modules by
SIZES = re.compile(r"dim|size|width|hidden|intermediate|vocab|position|length|window")
DENIED = {field.name for field in fields(PreTrainedConfig)} - {"is_encoder_decoder"} | set(
    """rope_parameters rope_scaling quantization_config vision_config audio_config backbone_config backbone
    use_pretrained_backbone use_timm_backbone attn_implementation compression_config generation_config""".split()
)
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
HEAD = re.compile(r"(^|\.)(lm_head|cls|output|vocab_\w+|predictions|embed_out|final_logits_bias|generator)(\.|$)")
LAYER = re.compile(r"^(.*?)\.?(?:^|\.)(\d+)\.")


class _TooLong(Exception):
    """It took more than `SECONDS`."""


class _OnPaper(TorchFunctionMode):
    """Every tensor on the meta device, whatever the model asks for, and an end to it after `SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self.end = time.monotonic() + SECONDS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self.end:
            raise _TooLong
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)


# ---- a whole model


def model_from(text: str, label: str = "") -> Model:
    """Of a config.json. `TfvizError` in one sentence for what is none, or what cannot be built."""
    return _model_from(text, label)


@lru_cache(maxsize=64)
def _model_from(text: str, label: str) -> Model:
    config = parsed(text)
    shape = shape_from(config, label)
    built = _built(config)
    weights, forward = _by_formula(config) if built is None else (weights_of(built[0]), forward_of(*built))
    return Model(shape.label, weights, forward, shape)


def model_of_entry(entry: CatalogEntry) -> Model:
    """Of a model of the catalog: nothing has to be on disk."""
    ours = entry.preset or entry.checkpoint
    if ours is None:
        return replace(model_from(json.dumps(config_of(entry)), entry.label), cache=shape_of_entry(entry))
    return Model(entry.label, *_ours(PRESETS[ours]), shape_of_entry(entry))


def model_of(loaded: LoadedModel) -> Model:
    """Of a model in memory, by its own config: its tensors are not looked at."""
    if isinstance(loaded, ScratchModel):
        weights, forward = _ours(loaded.transformer.config)
    else:
        config: Any = loaded.model.config
        built = _on_paper(type(loaded.model), config)
        weights, forward = weights_of(built), forward_of(built, config)
    return Model(loaded.label, weights, forward, shape_of(loaded))


def _ours(config: TransformerConfig) -> tuple[Weights, Forward]:
    with torch.device("meta"):
        model = Transformer(config)
    return weights_of(model), forward_of(model, config)


# ---- what a text may say


def _built(config: Mapping[str, Any]) -> tuple[nn.Module, Any] | None:
    """(the text model on the meta device, its config); None for a model_type that transformers does not know."""
    inside = next((config[part] for part in TEXT_PARTS if isinstance(config.get(part), Mapping)), None)
    outer, inner = str(config.get("model_type") or ""), str((inside or {}).get("model_type") or "")
    if outer in CONFIG_MAPPING and inside is not None and not inner:
        part = next(part for part in TEXT_PARTS if inside is config.get(part))
        inner = getattr(CONFIG_MAPPING[outer].sub_configs.get(part), "model_type", "")
    kind, said = (
        (inner, inside) if inner in CONFIG_MAPPING and not config.get("is_encoder_decoder") else (outer, config)
    )
    if kind not in CONFIG_MAPPING:
        return None
    assert said is not None
    check_config({"model_type": kind}, _name(config) or kind)  # a sentence where it reads no text
    cls = CONFIG_MAPPING[kind]
    known = ({field.name for field in fields(cls)} | set(cls.attribute_map)) - DENIED
    kept = {name: _entry(name, value) for name, value in said.items() if name in known and not name.endswith("_id")}
    named = config.get("architectures")
    try:
        made = cls(**kept)
        made.architectures = [str(one)[:MOST_LETTERS] for one in named[:1]] if isinstance(named, list) else None
        auto, _, _ = _classes(made)
        mapping = auto._model_mapping
        if type(made) not in mapping:
            raise TfvizError("speed.memory.error.no_text", kind=kind)
        chosen = mapping[type(made)]
        model = _on_paper(chosen[0] if isinstance(chosen, tuple) else chosen, made)
    except TfvizError:
        raise
    except Exception as error:  # transformers' classes raise many kinds for numbers that do not fit together
        raise _misfit(kind, error) from error
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if said.get("tie_word_embeddings") is False and made.tie_word_embeddings and head is not None:
        head.weight = nn.Parameter(torch.empty_like(head.weight))  # transformers' T5 ties whatever its file says
    return model, made


def _on_paper(cls: Any, config: Any) -> nn.Module:
    try:
        with torch.device("meta"), _OnPaper():
            made: nn.Module = cls(config)
            return made
    except _TooLong as error:
        raise TfvizError("speed.memory.error.slow", seconds=f"{SECONDS:g}") from error


def _entry(name: str, value: Any, depth: int = 0) -> Any:
    """A value of plain type within limits; a sentence for any other."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and len(value) <= MOST_LETTERS):
        return value
    if isinstance(value, int):
        few = name in LAYER_COUNTS or (PART_COUNT.search(name) is not None and not SIZES.search(name)) or depth > 0
        high = MOST_LAYERS if name in LAYER_COUNTS or "layers" in name else MOST_PARTS if few else LARGEST
        if not -1 <= value <= high:
            raise TfvizError("speed.memory.error.range", name=name, value=_shown(value), high=f"{high:,}")
        return value
    if isinstance(value, float) and abs(value) < 1e12:
        return value
    if isinstance(value, list) and len(value) <= MOST_ENTRIES and depth < DEEPEST:
        return [_entry(name, one, depth + 1) for one in value]
    if isinstance(value, Mapping) and len(value) <= MOST_LETTERS and depth < DEEPEST:
        items = [(str(key), one) for key, one in value.items() if str(key) not in DENIED]
        return {key: _entry(key, one, depth + 1) for key, one in items}
    raise TfvizError("speed.memory.error.entry", name=name[:60], value=_shown(value))


# ---- from modules to shapes


@dataclass(frozen=True)
class _Held:
    """One parameter: under which names, and who holds it."""

    name: str
    parameter: nn.Parameter
    owners: tuple[nn.Module, ...]


def _held(model: nn.Module) -> list[_Held]:
    """Each parameter once, however many share it."""
    names: dict[int, str] = {}
    owners: dict[int, list[nn.Module]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), f"{path}.{name}" if path else name)
                owners.setdefault(id(parameter), []).append(module)
                parameters[id(parameter)] = parameter
    return [_Held(names[key], parameter, tuple(owners[key])) for key, parameter in parameters.items()]


def weights_of(model: nn.Module) -> Weights:
    """Every parameter and buffer of a model, wherever it lies, by what the precisions do with it."""
    get_head: Any = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    declared = {name: _declared_fp32(model, dtype) for name, dtype in _HALVES.items()}
    matrices = []
    for held in _held(model):
        stays = tuple(name for name, parts in declared.items() if _any_part(parts, held.name))
        shape = tuple(held.parameter.shape)
        role = _role(held, head)
        if role == "linear" and any(_is_conv1d(one) for one in held.owners):
            shape = shape[::-1]
        matrices.append(Matrix(_kind(held, head), role, shape, stays=stays))
    floats = fixed = 0
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if name in module._non_persistent_buffers_set or not buffer.is_floating_point():
                fixed += buffer.numel() * buffer.element_size()
            else:
                floats += buffer.numel()
    return Weights(counted(matrices), floats, fixed)


_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def _role(held: _Held, head: Any) -> str:
    """What tfviz.inference.precision does with it."""
    tables = [one for one in held.owners if isinstance(one, nn.Embedding)]
    if held.parameter.dim() != 2 or any(one.max_norm is not None for one in tables):
        return "plain"
    if any(type(one) is nn.Linear for one in held.owners):
        return "shared" if tables or any(one is head for one in held.owners) else "linear"
    if any(_is_conv1d(one) for one in held.owners):
        return "linear"
    large = held.parameter.numel() >= TABLE
    return "table" if large and any(type(one) is nn.Embedding for one in tables) else "plain"


def _kind(held: _Held, head: Any) -> str:
    inside = LAYER.match(held.name)
    name = held.name[inside.end() :] if inside else held.name
    if any(is_norm(one) for one in held.owners):
        return "norm"
    if not inside and any(isinstance(one, nn.Embedding) for one in held.owners):
        return "embedding"
    if any(one is head for one in held.owners) or (not inside and HEAD.search(name)):
        return "head"
    if not inside:
        return "embedding" if "embed" in name.lower() else "other"
    if ATTENTION.search(name):
        return "attention"
    if re.search(r"mixer|mamba|ssm|conv", name, re.IGNORECASE):
        return "other"
    if "expert" in name or "router" in name or held.parameter.dim() == 3:
        return "experts"
    return "feed_forward"


def forward_of(model: nn.Module, config: Any) -> Forward:
    """The layers by what passes through them, read off the shapes of their matrices and the config's heads."""
    text = config if isinstance(config, TransformerConfig) else config.get_text_config(decoder=True)
    d_model = _number(text, "d_model", "hidden_size")
    groups: dict[tuple[str, int], list[_Held]] = {}
    for held in _held(model):
        found = LAYER.match(held.name)
        if found:
            groups.setdefault((found[1], int(found[2])), []).append(held)
    two = _family(config) == "encoder-decoder"
    experts = _number(text, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 1
    pre = _is_pre(model, config)
    turns = any("rotary" in type(one).__name__.lower() for one in model.modules())
    shapes: Counter[LayerShape] = Counter()
    for (path, _), inside in groups.items():
        stack = ("decoder" if "decoder" in path else "encoder") if two else "self"
        heads = _head_numbers(config, text, stack)
        layer = _layer(inside, text, d_model, stack, experts, heads)
        rope = 2 * layer.query // layer.heads if turns and layer.heads else 0
        shapes[replace(layer, pre=pre, rope=rope)] += 1
    layers = {one: n for one, n in shapes.items() if one.widened or one.heads}
    meant = getattr(text, "num_hidden_layers", None)
    if not two and isinstance(meant, int) and sum(layers.values()) == 1 < meant:  # ALBERT: one layer, many times
        layers = dict.fromkeys(layers, meant)
    return Forward(tuple(layers.items()), d_model, _vocabulary(model, text), *_table(model))


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
    inside: list[_Held], text: Any, d_model: int, stack: str, experts: int, of_heads: tuple[int, int, int, int]
) -> LayerShape:
    parts: dict[str, list[tuple[int, ...]]] = {"feed_forward": [], "experts": []}
    attention, norms, rms, named = False, 0, False, ""
    for held in inside:
        kind, shape = _kind(held, None), tuple(held.parameter.shape)
        if kind in parts and len(shape) > 1:
            parts[kind].append(shape[::-1] if any(_is_conv1d(one) for one in held.owners) else shape)
        norms += kind == "norm" and held.name.endswith("weight") and shape == (d_model,)
        rms = rms or (kind == "norm" and "rms" in type(held.owners[0]).__name__.lower())
        attention, named = attention or kind == "attention", f"{named} {held.name.lower()}"
    widened, hidden = _widths(parts["feed_forward"], d_model)
    wide, narrow = _expert_widths(parts["experts"], d_model)
    heads, query, key, value = of_heads if attention else (0, 0, 0, 0)
    act = str(getattr(text, "hidden_act", None) or getattr(text, "activation_function", "") or _ours_act(text))
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
        bent=0 if act == "relu" else 1,
        stack=stack,
        cross=cross,
    )


def _ours_act(text: Any) -> str:
    return str(getattr(text, "feed_forward", "") or getattr(text, "dense_act_fn", ""))


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


# ---- a model_type that nobody knows


WIDTHS = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size")


def _by_formula(config: Mapping[str, Any]) -> tuple[Weights, Forward]:
    """By the names that most configs use; what is not said is what LLaMA does."""
    parts = (config.get(part) for part in TEXT_PARTS)
    inside: Mapping[str, Any] = next((one for one in parts if isinstance(one, Mapping)), {})
    said = {**config, **inside}
    kept = {name: _entry(name, said[name]) for name in (*_NAMES, *WIDTHS) if name in said}
    text = _plain(kept)
    d, n, vocabulary = (_needed(text, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    heads, kv_heads = _heads(text), _kv_heads(text)
    key, value = _dims(text, heads)
    width = next((kept[name] for name in WIDTHS if kept.get(name)), 4 * d)
    gated = "silu" in str(kept.get("hidden_act", "silu")).lower() or "swiglu" in str(kept.get("hidden_act")).lower()
    tied = kept.get("tie_word_embeddings") is True
    matrices = [
        Matrix("embedding", "shared" if tied else "table", (vocabulary, d)),
        *([] if tied else [Matrix("head", "shared", (vocabulary, d))]),
        Matrix("attention", "linear", (heads * key, d), n),
        Matrix("attention", "linear", (kv_heads * key, d), n),
        Matrix("attention", "linear", (kv_heads * value, d), n),
        Matrix("attention", "linear", (d, heads * value), n),
        Matrix("feed_forward", "linear", (width, d), n * (1 + gated)),
        Matrix("feed_forward", "linear", (d, width), n),
        Matrix("norm", "plain", (d,), 2 * n + 1),
    ]
    layer = LayerShape(
        d,
        heads,
        heads * key,
        kv_heads * key,
        kv_heads * value,
        (1 + gated) * width,
        width,
        rms=gated,
        pre=True,
        rope=2 * key,
    )
    return Weights(counted(matrices), formula=True), Forward(((layer, n),), d, vocabulary, vocabulary * d, tied)


_NAMES = """hidden_size n_embd d_model dim num_hidden_layers n_layer n_layers num_layers vocab_size num_attention_heads
    n_head n_heads num_heads num_key_value_heads num_kv_heads n_kv_heads multi_query_group_num head_dim kv_channels
    hidden_act tie_word_embeddings""".split()


def _needed(text: Any, name: str) -> int:
    value = getattr(text, name, None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TfvizError("speed.memory.error.missing", name=name)
    return value


__all__ = ["forward_of", "model_from", "model_of", "model_of_entry", "weights_of"]
