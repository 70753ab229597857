"""How many parameters a model has, of which kind and shape, from its config alone: nothing is loaded.

The model is built on paper (tfviz.sources.on_paper) and its matrices are read off. A model_type that transformers lacks
is counted by a formula, and said to be:

    V d (1 or 2) + layers (d (h + 2 h_kv) d_k + h d_k d + (2 or 3) d d_ff + 2 d) + d
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from tfviz.config import PRESETS, TransformerConfig
from tfviz.errors import TfvizError
from tfviz.inference.memory_shapes import Forward, LayerShape, Matrix, Model, Weights, counted
from tfviz.model.transformer import Transformer
from tfviz.sources.base import LoadedModel
from tfviz.sources.cache_config import _dims, _heads, _kv_heads, _plain, shape_from, shape_of, shape_of_entry
from tfviz.sources.catalog import CatalogEntry
from tfviz.sources.catalog_configs import config_of
from tfviz.sources.config_entries import MOST_LETTERS, WIDTHS, check_outline, entry, refused
from tfviz.sources.layer_shapes import forward_of
from tfviz.sources.on_paper import built, on_paper
from tfviz.sources.pasted_config import SWITCHES, SYNONYMS, TEXT_PARTS, in_a_sentence, parsed
from tfviz.sources.scratch import ScratchModel
from tfviz.sources.weight_shapes import weights_of

OWN_WORDS = {  # refusals of the cache's planner, said of the whole model
    "cache.planner.error.missing": "speed.memory.error.missing",
    "cache.planner.error.misfit": "speed.memory.error.misfit",
}


def model_from(text: str, label: str = "") -> Model:
    """Of a config.json. `TfvizError` in one sentence for what is none, or what cannot be built."""
    with _in_own_words():
        return _model_from(text, label)


@contextmanager
def _in_own_words() -> Iterator[None]:
    try:
        yield
    except TfvizError as error:
        if error.key not in OWN_WORDS:
            raise
        raise TfvizError(OWN_WORDS[error.key], **error.values) from error


@lru_cache(maxsize=64)
def _model_from(text: str, label: str) -> Model:
    config = parsed(text)
    check_outline(config)
    try:
        shape = shape_from(config, label)
    except TfvizError as error:
        if error.key == "cache.planner.error.misfit":
            built(config)  # names the entry, if it is a single one
        raise
    found = built(config)
    weights, forward = _by_formula(config) if found is None else _read_off(*found)
    return Model(shape.label, weights, forward, shape)


@lru_cache(maxsize=64)
def model_of_entry(one: CatalogEntry) -> Model:
    """Of a model of the catalog: nothing has to be on disk."""
    ours = one.preset or one.checkpoint
    if ours is None:
        return replace(model_from(json.dumps(config_of(one)), one.label), cache=shape_of_entry(one))
    return Model(one.label, *_ours(PRESETS[ours]), shape_of_entry(one))


def model_of(loaded: LoadedModel) -> Model:
    """Of a model in memory, by its own config: its tensors are not looked at."""
    with _in_own_words():
        return _model_of(loaded)


def _model_of(loaded: LoadedModel) -> Model:
    if isinstance(loaded, ScratchModel):
        weights, forward = _ours(loaded.transformer.config)
    else:
        config: Any = loaded.model.config
        weights, forward = _read_off(on_paper(type(loaded.model), config), config)
    return Model(loaded.label, weights, forward, shape_of(loaded))


def _read_off(model: nn.Module, config: Any) -> tuple[Weights, Forward]:
    with in_a_sentence(config.model_type):  # layers of a kind that nobody has met yet
        return weights_of(model), forward_of(model, config)


def _ours(config: TransformerConfig) -> tuple[Weights, Forward]:
    with torch.device("meta"):
        model = Transformer(config)
    return weights_of(model), forward_of(model, config)


# ---- a model_type that nobody knows


def _by_formula(config: Mapping[str, Any]) -> tuple[Weights, Forward]:
    """By the names that most configs use; what is not said is what LLaMA does."""
    parts = (config.get(part) for part in TEXT_PARTS)
    inside: Mapping[str, Any] = next((one for one in parts if isinstance(one, Mapping)), {})
    attention = config.get("attn_config")
    said = {**(attention if isinstance(attention, Mapping) else {}), **config, **inside}
    kept = {name: entry(name, said[name], _declared(name)) for name in _NAMES if name in said}
    text = _plain(kept)
    text.vocab_size = next((kept[name] for name in VOCABULARIES if kept.get(name)), None)
    d, n, vocabulary = (_needed(text, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    heads, kv_heads = _heads(text), _kv_heads(text)
    key, value = _dims(text, heads)
    width = next((kept[name] for name in WIDTHS if kept.get(name)), 4 * d)
    act = said.get("hidden_act", "silu")  # by any name: it may be a function of its own
    if not isinstance(act, str | None):
        raise refused("hidden_act", act, "text", most=MOST_LETTERS)
    gated = any(name in str(act).lower() for name in ("silu", "swiglu"))
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


VOCABULARIES = ("padded_vocab_size", "vocab_size", "n_vocab", "num_embeddings")
_SWITCHES = {"tie_word_embeddings", *SWITCHES}
_NAMES = sorted(
    {*SYNONYMS, *(name for names in SYNONYMS.values() for name in names), *WIDTHS, *VOCABULARIES, *_SWITCHES}
)


def _declared(name: str) -> str:
    return "bool | None" if name in _SWITCHES else "int | None"


def _needed(text: Any, name: str) -> int:
    value = getattr(text, name, None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TfvizError("speed.memory.error.missing", name=name)
    return value
