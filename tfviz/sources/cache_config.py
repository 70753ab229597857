"""Any model's numbers for its key/value cache (`CacheShape`): a pasted config.json, an entry of the catalog, a loaded
model.

Where transformers knows the `model_type`, its config class fills in what a pasted text leaves out; no file or address
that the text names is ever opened (tfviz.sources.pasted_config).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from tfviz.config import PRESETS, TransformerConfig
from tfviz.errors import TfvizError
from tfviz.inference.cache_size import CacheLayer, CacheShape
from tfviz.sources.base import LoadedModel
from tfviz.sources.catalog import CatalogEntry
from tfviz.sources.config_names import class_of
from tfviz.sources.packed_config import packed
from tfviz.sources.pasted_config import (
    PATTERN,
    PER_LAYER,
    SYNONYMS,
    TEXT_PARTS,
    checked,
    in_a_sentence,
    named_model,
    parsed,
    shown_value,
)
from tfviz.sources.scratch import ScratchModel

KINDS = {  # transformers' names of what a layer does -> ours
    "full_attention": "full",
    "attention": "full",
    "hybrid": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "hybrid_sliding": "sliding",
    "chunked_attention": "chunked",
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "recurrent", "conv", "moe", "mlp"), "state"),
}
WINDOWS = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}
BESIDE = {"hybrid", "hybrid_sliding"}  # a state beside keys and values
AFTER_PADDING = set(  # model types that count positions from after the padding's id
    """roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod camembert data2vec-text ibert lilt longformer luke
    markuplm mpnet""".split()
)
INDEXED = "indexed_attention"  # a small index of keys beside them


def read_config(text: str) -> CacheShape:
    """A pasted config.json. `TfvizError` in one sentence for what is none, or has numbers that make no sense."""
    return shape_from(parsed(text))


def shape_from(config: Mapping[str, Any], label: str = "") -> CacheShape:
    """The same for a config that has been parsed."""
    kept = checked(config, class_of(config.get("model_type")))
    kind = str(kept.get("model_type") or "")
    resolved, remarks = _resolved(kept, kind)
    named = label or named_model(config) or kind or "config.json"
    with in_a_sentence(kind):  # layers that differ in ways of their own, or no text model
        shape = _shape(resolved, _family(config, resolved), named)
    if any(_is_windowless(one) for one in (config, *(config.get(part) for part in TEXT_PARTS))):
        remarks.append("windowless")
    return replace(shape, remarks=(*shape.remarks, *remarks), packed=packed(config))


def _shape(config: Any, family: str, label: str) -> CacheShape:
    text = config if family == "encoder" else _text_part(config)
    limit = _limit(text)
    if family == "encoder":
        return CacheShape(label, family, (), limit)
    configs = layer_configs(text)
    layers, remarks = _layers(text, configs, encoder_decoder=family == "encoder-decoder")
    heads = max((_whole(one, "num_attention_heads", optional=True) or 0 for one in configs), default=0)
    return CacheShape(label, family, tuple(layers), limit, None, heads, tuple(dict.fromkeys(remarks)))


def _limit(text: Any) -> int | None:
    """Positions that a text may take; RoBERTa and its kin leave those up to the padding's unused."""
    positions: Any = getattr(text, "max_position_embeddings", None)
    padding = getattr(text, "pad_token_id", None)
    if not _is_count(positions):
        return None
    unused = padding + 1 if text.model_type in AFTER_PADDING and isinstance(padding, int) else 0
    return int(max(positions - unused, 1))


def shape_of(loaded: LoadedModel) -> CacheShape:
    """Of a model in memory, by its own config."""
    if isinstance(loaded, ScratchModel):
        shape = _of_ours(loaded.transformer.config, loaded.label)
    else:
        config: Any = loaded.model.config
        with in_a_sentence(config.model_type):
            shape = _shape(config, loaded.family, loaded.label)
    return replace(shape, n_parameters=loaded.n_parameters)


def shape_of_entry(entry: CatalogEntry) -> CacheShape:
    """Of a model of the catalog, from the numbers below: nothing has to be on disk."""
    if entry.preset is not None:
        shape = _of_ours(PRESETS[entry.preset], entry.label)
    elif entry.checkpoint is not None:
        shape = _of_ours(PRESETS[entry.checkpoint], entry.label)
    elif entry.family == "encoder":
        shape = CacheShape(entry.label, "encoder", ())
    else:
        shape = shape_from(CONFIGS[entry.id], entry.label)
    return replace(shape, n_parameters=entry.parameters)


def _of_ours(config: TransformerConfig, label: str) -> CacheShape:
    """Our own Transformer keeps all positions, behind a window too."""
    width = config.width
    own = [CacheLayer("full", config.kv_heads, width, width)] * config.n_decoder_layers
    across = [CacheLayer("cross", config.kv_heads, width, width)] * config.n_decoder_layers
    layers = own + across if config.family == "encoder-decoder" else own
    return CacheShape(label, config.family, tuple(layers), config.max_seq_len, None, config.n_heads)


def _is_windowless(config: Any) -> bool:
    """Whether its window is 0, which some files say where there is none."""
    return isinstance(config, Mapping) and type(config.get("sliding_window")) is int and config["sliding_window"] == 0


def _resolved(kept: dict[str, Any], kind: str) -> tuple[Any, list[str]]:
    """(an object with the config's numbers, remarks: names were guessed, other parts are not counted)"""
    if kind not in CONFIG_MAPPING:
        inside = next((kept[part] for part in TEXT_PARTS if isinstance(kept.get(part), dict)), None)
        beside = ["tower"] if inside is not None else []
        if inside is not None and inside.get("model_type") in CONFIG_MAPPING:
            resolved, remarks = _resolved(inside, inside["model_type"])
            return resolved, [*dict.fromkeys([*remarks, "guessed", *beside])]
        return _plain({**(inside or {}), **kept}), ["guessed", *beside]
    with in_a_sentence(kind):
        made = CONFIG_MAPPING[kind](**{name: value for name, value in kept.items() if name != "model_type"})
        whole = made.is_encoder_decoder or made.get_text_config(decoder=True) is made
    return made, [] if whole else ["tower"]


def _plain(kept: dict[str, Any]) -> SimpleNamespace:
    """By the names that configs commonly use, for a model that transformers does not know."""
    plain = {**(kept.get("attn_config") or {}), **kept}
    if plain.get("multi_query_attention") is False:
        plain.pop("multi_query_group_num", None)  # ChatGLM names it all the same
    for name, others in SYNONYMS.items():
        if plain.get(name) is None:
            plain[name] = next((plain[other] for other in others if plain.get(other) is not None), None)
    plain["multi_query"] = plain.get("multi_query") or plain.get("multi_query_attention")
    if plain.get("use_sliding_window") is False:
        plain["sliding_window"] = None
    window, every, n = plain.get("sliding_window"), plain.get(PATTERN), plain["num_hidden_layers"]
    if window and isinstance(every, int) and every and n and not plain.get("layer_types"):
        plain["layer_types"] = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(n)]
    own = {int(i): one for i, one in (plain.pop(PER_LAYER, None) or {}).items() if i.isdecimal()}
    made = SimpleNamespace(**{"is_encoder_decoder": False, "use_cache": True, "model_type": "", **plain})
    if own and n:
        made.per_layer_config = [SimpleNamespace(**{**vars(made), **own.get(i, {})}) for i in range(n)]
    return made


def _text_part(config: Any) -> Any:
    if isinstance(config, SimpleNamespace):
        return config
    return config.get_text_config(decoder=True)


def _family(config: Mapping[str, Any], resolved: Any) -> str:
    text = _text_part(resolved)
    if resolved.is_encoder_decoder:
        return "encoder-decoder"
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kind = text.model_type
    if first.endswith(("CausalLM", "LMHeadModel")) or config.get("is_decoder") is True:
        return "decoder"
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "encoder"
    return "decoder" if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(text, "use_cache") else "encoder"


def layer_configs(text: Any) -> list[Any]:
    """A config for each layer: they differ where a model's layers have heads of several widths (Gemma 4)."""
    n = _whole(text, "num_decoder_layers", optional=True) or _whole(text, "num_hidden_layers")
    own = getattr(text, PER_LAYER, None)
    return list(own) if own is not None and len(own) == n else [text] * n


def _layers(text: Any, configs: list[Any], encoder_decoder: bool) -> tuple[list[CacheLayer], list[str]]:
    remarks: list[str] = []
    made = [_layer(layer, kind, remarks) for layer, kind in _kinds(text, configs)]
    modes = getattr(text, "kv_sharing_modes", None) or [None] * len(made)
    images = getattr(text, "cross_attention_layers", None) or ()
    made = [CacheLayer("image") if i in images else one for i, one in enumerate(made)]
    remarks += ["images"] * bool(images)
    made = [CacheLayer("shared") if mode == "reuse" else one for mode, one in zip(modes, made, strict=True)]
    if encoder_decoder:
        made += [CacheLayer("cross", one.n_heads, one.key_dim, one.value_dim) for one in made]
    if any(layer.unfolded for layer in made):
        remarks.append("latent")
    if any(layer.kind == "state" for layer in made):
        remarks.append("state")
    return made, remarks


def _kinds(text: Any, configs: list[Any]) -> Iterator[tuple[Any, str]]:
    """(its config, what it does) for each layer."""
    types = getattr(text, "layer_types", None)
    if types is not None and len(types) != len(configs):
        raise TfvizError("cache.planner.error.layer_types", n=len(configs), given=len(types))
    for i, layer in enumerate(configs):
        if types is not None:
            yield layer, types[i]
        elif getattr(layer, "sliding_window", None):
            yield layer, "sliding_attention"
        else:
            chunked = getattr(layer, "attention_chunk_size", None)
            yield layer, "chunked_attention" if chunked else "full_attention"


def _layer(layer: Any, said: str, remarks: list[str]) -> CacheLayer:
    kind = KINDS.get(said)
    if kind is None:
        raise TfvizError("cache.planner.error.layer_kind", kind=shown_value(said))
    if kind == "state":
        return CacheLayer("state")
    remarks += ["beside"] * (said in BESIDE) + ["indexed"] * (said == INDEXED)
    if kind in WINDOWS and getattr(layer, WINDOWS[kind], None) == 0:
        kind = "full"
    window = None if kind == "full" else _whole(layer, WINDOWS[kind])
    rank = _whole(layer, "kv_lora_rank", optional=True)
    if rank is not None:
        key, value = _dims(layer, _heads(layer))
        return CacheLayer(kind, 1, rank, _whole(layer, "qk_rope_head_dim"), window, _heads(layer) * (key + value))
    heads, kv_heads = _heads(layer), _kv_heads(layer)
    if heads % kv_heads:
        raise TfvizError("cache.planner.error.heads", heads=heads, kv_heads=kv_heads)
    if getattr(layer, "new_decoder_architecture", None) and kv_heads < heads:
        remarks.append("repeated")
    return CacheLayer(kind, kv_heads, *_dims(layer, heads), window)


def _heads(layer: Any) -> int:
    heads: int = _whole(layer, "num_attention_heads")
    return heads


def _kv_heads(layer: Any) -> int:
    """By a number in most configs, by a switch in some (Falcon, StarCoder); without either every head has its own."""
    said = [_whole(layer, name, optional=True) for name in ("num_key_value_heads", "num_kv_heads")]
    number: int | None = next((one for one in said if one is not None), None)
    if number is None or getattr(layer, "new_decoder_architecture", None) is False:
        return 1 if getattr(layer, "multi_query", None) else _heads(layer)
    return number


def _dims(layer: Any, heads: int) -> tuple[int, int]:
    """Numbers of a key and of a value of one head."""
    nope, value = (_whole(layer, name, optional=True) for name in ("qk_nope_head_dim", "v_head_dim"))
    dim = _whole(layer, "head_dim", optional=True)
    if nope is not None:
        dim = nope + _whole(layer, "qk_rope_head_dim")
    if dim is None:
        hidden = _whole(layer, "hidden_size")
        if hidden % heads:
            raise TfvizError("cache.planner.error.width", hidden=hidden, heads=heads)
        dim = hidden // heads
    return dim, dim if value is None else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _whole(config: Any, name: str, optional: bool = False) -> Any:
    value = getattr(config, name, None)
    if value is None and not optional:
        raise TfvizError("cache.planner.error.missing", name=name)
    if value is not None and not _is_count(value):
        raise TfvizError("cache.planner.error.number", name=name, value=shown_value(value), low=1)
    return value


CONFIGS: dict[str, dict[str, Any]] = {  # numbers of the catalog's decoders, as their config.json has them
    "smollm2-135m": {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
    },
    "gpt2": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "distilgpt2": {"model_type": "gpt2", "n_layer": 6, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "HuggingFaceTB/SmolLM2-360M": {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 960,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "max_position_embeddings": 8192,
    },
    "Qwen/Qwen3-0.6B": {
        "model_type": "qwen3",
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
    "google-t5/t5-small": {"model_type": "t5", "num_layers": 6, "num_heads": 8, "d_kv": 64, "d_model": 512},
    "google/flan-t5-small": {"model_type": "t5", "num_layers": 8, "num_heads": 6, "d_kv": 64, "d_model": 512},
    "Helsinki-NLP/opus-mt-en-zh": {
        "model_type": "marian",
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "d_model": 512,
        "max_position_embeddings": 512,
    },
    "facebook/bart-base": {
        "model_type": "bart",
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "d_model": 768,
        "max_position_embeddings": 1024,
    },
}
