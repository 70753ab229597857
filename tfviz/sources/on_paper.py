"""A text model on PyTorch's "meta" device, where a tensor has a shape and no bytes: 671 billion parameters take 0.1 s.

A config is data: only entries that transformers' own config class of that model_type has are handed on, each checked
(tfviz.sources.config_entries); code of a repository is never run, and nothing is looked up.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tfviz.errors import TfvizError
from tfviz.sources.building import in_turn
from tfviz.sources.config_entries import MOST_LETTERS, entries
from tfviz.sources.huggingface import _classes
from tfviz.sources.locate import check_config
from tfviz.sources.pasted_config import TEXT_PARTS, in_a_sentence, named_model
from tfviz.sources.text_inside import without_towers, wrapper

logger = logging.getLogger(__name__)

SECONDS = 5.0  # of a processor that a model on paper may take: a busy machine changes nothing


class _TooLong(Exception):
    """It took more than `SECONDS` of a processor."""


class _OnPaper(TorchFunctionMode):
    """Every tensor on the meta device, whatever the model asks for, and an end to it after `SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self.end = time.thread_time() + SECONDS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.thread_time() > self.end:
            raise _TooLong
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)


def on_paper(cls: Any, config: Any) -> nn.Module:
    try:
        with in_turn, torch.device("meta"), _OnPaper():
            made: nn.Module = cls(config)
            return made
    except _TooLong as error:
        raise TfvizError("speed.memory.error.slow", seconds=f"{SECONDS:g}") from error


def built(config: Mapping[str, Any]) -> tuple[nn.Module, Any] | None:
    """(the text model, its config); None for a model_type that transformers does not know."""
    around = wrapper(config)
    if around is not None:
        cls, whole = around
        try:
            return without_towers(on_paper(cls, whole)), whole.get_text_config(decoder=True)
        except TfvizError:
            raise
        except Exception:  # many kinds: a tower that needs a package, or reads a tensor's values
            logger.info("no %s on paper: its text part alone", whole.model_type, exc_info=True)
    kind, said = _text_part(config)
    if kind not in CONFIG_MAPPING:
        return None
    if around is not None and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise TfvizError("speed.memory.error.tower", kind=around[1].model_type)
    check_config({"model_type": kind}, named_model(config) or kind)  # a sentence where it reads no text
    cls = CONFIG_MAPPING[kind]
    kept = entries(said, cls)
    if around is not None:
        kept["tie_word_embeddings"] = getattr(around[1], "tie_word_embeddings", False)
    elif "tie_word_embeddings" in config:  # beside a text part inside, where an unknown model says it
        kept.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    named = config.get("architectures")
    with in_a_sentence(kind):
        made = cls(**kept)
        made.architectures = [one[:MOST_LETTERS] for one in named[:1]] if named and around is None else None
        auto, _, _ = _classes(made)
        mapping = auto._model_mapping
        if type(made) not in mapping:
            raise TfvizError("speed.memory.error.no_text", kind=kind)
        chosen = mapping[type(made)]
        model = on_paper(chosen[0] if isinstance(chosen, tuple) else chosen, made)
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if kept.get("tie_word_embeddings") is False and made.tie_word_embeddings and head is not None:
        head.weight = nn.Parameter(torch.empty_like(head.weight))  # transformers' T5 ties whatever its file says
    return model, made


def _text_part(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """(model_type, entries) of the part that reads text, where a config has several."""
    part = next((part for part in TEXT_PARTS if isinstance(config.get(part), Mapping)), "")
    inside: Mapping[str, Any] = config[part] if part else {}
    outer, inner = str(config.get("model_type") or ""), str(inside.get("model_type") or "")
    if outer in CONFIG_MAPPING and part and not inner:
        inner = getattr(CONFIG_MAPPING[outer].sub_configs.get(part), "model_type", "")
    return (inner, inside) if inner in CONFIG_MAPPING and not config.get("is_encoder_decoder") else (outer, config)
