"""Entries of a config.json that a model is built from, each checked before it is handed on.

What is allowed follows from how transformers' config class declares the entry ("int | None"), and from limits of ours:
a text that anybody pasted may not ask for a model that takes minutes even on paper.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from math import isinf
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from tfviz.errors import Phrase, TfvizError
from tfviz.sources.config_names import declared, known_names
from tfviz.sources.pasted_config import DEEPEST, LAYER_COUNTS, MOST_LAYERS, TEXT_PARTS, shown_value

LARGEST, MOST_PARTS, MOST_ENTRIES, MOST_LETTERS = 1 << 28, 1 << 14, 1000, 100
PART_COUNT = re.compile(r"(layer|block|expert|head|group|code)s?(_|$)")  # numbers that models count modules by
SIZES = re.compile(r"dim|size|width|hidden|intermediate|vocab|position|length|window|theta")
WIDTHS = """intermediate_size ffn_dim d_ff n_inner ffn_hidden_size hidden_dim d_ffn ffn_size dim_feedforward
    feed_forward_size""".split()
FROM_ONE = {"vocab_size", "embedding_size", "encoder_ffn_dim", "decoder_ffn_dim", *WIDTHS}  # others may be 0 or -1
ACTIVATION = re.compile(
    r"^(hidden_act|activation|activation_function|hidden_activation|dense_act_fn|feed_forward_proj)$"
)
DENIED = {field.name for field in fields(PreTrainedConfig)} - {"is_encoder_decoder"} | set(
    """rope_parameters rope_scaling quantization_config vision_config audio_config backbone_config backbone
    use_pretrained_backbone use_timm_backbone attn_implementation compression_config generation_config
    torch_dtype""".split()
)
PLAIN = "int float bool str list dict None"  # of an entry that no class declares


def entries(said: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    """Those that a model of `cls` listens to, checked. Ids of tokens (but for the padding's, which tables look at)
    and what names a file or code are left behind."""
    types, known = declared(cls), known_names(cls) - DENIED
    names = [name for name in said if name in known and (not name.endswith("_id") or name == "pad_token_id")]
    return {name: entry(name, said[name], types.get(cls.attribute_map.get(name, name), PLAIN)) for name in names}


def check_outline(config: Mapping[str, Any]) -> None:
    """What is looked at beside a class's entries: the kind, the name, the classes, the parts inside."""
    for name in ("model_type", "_name_or_path"):
        if not isinstance(config.get(name), str | None):
            raise refused(name, config[name], "text", most=200)
    named = config.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(one, str) for one in named)):
        raise refused("architectures", named, "texts")
    for name in TEXT_PARTS:
        if not isinstance(config.get(name), Mapping | None):
            raise refused(name, config[name], "object")
    if not isinstance(config.get("tie_word_embeddings"), bool | None):
        raise refused("tie_word_embeddings", config["tie_word_embeddings"], "switch")


def entry(name: str, value: Any, declared: str = PLAIN, depth: int = 0) -> Any:
    """The value, if it is of a declared type and within limits; a sentence with what is allowed otherwise."""
    kinds = set(re.findall(r"[A-Za-z]+", declared))
    if value is None and kinds & {"None", "Optional"}:
        return None
    if isinstance(value, bool) and "bool" in kinds:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and kinds & {"int", "float"}:
        low, high = _ends(name, depth)
        if "int" in kinds and not low <= value <= high:
            raise refused(name, value, "whole", low=_minus(low), high=f"{high:,}")
        return value
    if isinstance(value, float) and "float" in kinds and (abs(value) < 1e12 or isinf(value)):  # Mamba's steps: no end
        return value
    if isinstance(value, str) and kinds & {"str", "Literal"} and len(value) <= MOST_LETTERS:
        if ACTIVATION.match(name) and value.removeprefix("gated-") not in ACT2FN:
            raise refused(name, value, "activation")
        return value
    if isinstance(value, list) and kinds & {"list", "tuple"} and len(value) <= MOST_ENTRIES and depth < DEEPEST:
        return [entry(name, one, PLAIN, depth + 1) for one in value]
    if isinstance(value, Mapping) and "dict" in kinds and len(value) <= MOST_ENTRIES and depth < DEEPEST:
        items = [(str(key), one) for key, one in value.items() if str(key) not in DENIED]
        return {key: entry(key, one, PLAIN, depth + 1) for key, one in items}
    raise _unfit(name, value, kinds, depth)


def _ends(name: str, depth: int) -> tuple[int, int]:
    few = (PART_COUNT.search(name) is not None or depth > 0) and not SIZES.search(name)
    high = MOST_LAYERS if name in LAYER_COUNTS or "layers" in name else MOST_PARTS if few else LARGEST
    return int(name in FROM_ONE) or -1, high


def _unfit(name: str, value: Any, kinds: set[str], depth: int) -> TfvizError:
    low, high = _ends(name, depth)
    if depth or len(kinds & set(PLAIN.split())) > 3:
        return refused(name, value, "plain", entries=f"{MOST_ENTRIES:,}", letters=MOST_LETTERS)
    if "int" in kinds and "float" not in kinds:
        return refused(name, value, "whole", low=_minus(low), high=f"{high:,}")
    if ACTIVATION.match(name):
        return refused(name, value, "activation")
    word = next((word for kind, word in WORDS.items() if kind in kinds), "plain")
    return refused(name, value, word, most=MOST_LETTERS, entries=f"{MOST_ENTRIES:,}", letters=MOST_LETTERS)


WORDS = {"float": "number", "bool": "switch", "str": "text", "Literal": "text", "list": "list", "dict": "object"}


def _minus(number: int) -> str:
    return f"{number}".replace("-", "\u2212")


def refused(name: str, value: Any, allowed: str, **fields: Any) -> TfvizError:
    """In a sentence with what is allowed: the last word of a key of speed.memory.allowed, and its fields."""
    phrase = Phrase(f"speed.memory.allowed.{allowed}", fields)
    return TfvizError("speed.memory.error.entry", name=name[:60], value=shown_value(value), allowed=phrase)
