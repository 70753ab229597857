"""The text model inside one that also takes images or sound: built as transformers builds the whole, then taken out.

Which class the text part is of, where the output head stands and whether it shares the table of embeddings is decided
by the outer model (`tie_word_embeddings` counts at its level). So the whole is made, its towers with the numbers of
their class since nobody looks at them, and all that neither decodes nor is the head is taken off again.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from tfviz.sources.config_entries import entries
from tfviz.sources.config_names import class_of
from tfviz.sources.pasted_config import TEXT_PARTS, in_a_sentence


def wrapper(config: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """(model class, its config) of a model that has a text part among others; None for any other."""
    kind, part = config.get("model_type"), _part(config)
    cls, inside = class_of(kind), config.get(part) or {}
    if part and _part(inside):  # Qwen-Omni: the text model's wrapper is itself one part of several
        inner = class_of(inside.get("model_type"), cls, part)
        return None if inner is None else wrapper({**inside, "model_type": inner.model_type})
    if cls is None or cls not in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return _around(config)
    text_class = class_of(inside.get("model_type"), cls, part or "text_config")
    if text_class is None:
        return None
    text = entries(inside if part else config, text_class)
    tied = entries({name: value for name, value in config.items() if name == "tie_word_embeddings"}, cls)
    kept = {part: {**text, "model_type": text_class.model_type}, **tied} if part else {**text, **tied}
    with in_a_sentence(str(kind)):
        made = cls(**kept)
        whole = made.is_encoder_decoder or made.get_text_config(decoder=True) is made
    chosen = MODEL_FOR_MULTIMODAL_LM_MAPPING[cls]
    return None if whole else (chosen[0] if isinstance(chosen, tuple) else chosen, made)


def _part(config: Mapping[str, Any]) -> str:
    return next((part for part in TEXT_PARTS if isinstance(config.get(part), Mapping)), "")


def _around(config: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The same for a text part that was pasted alone and has no model of its own with a head (`qwen3_vl_text`)."""
    kind = str(config.get("model_type") or "")
    outer = model_type_to_module_name(kind)
    cls, around = class_of(kind), class_of(outer)
    if (
        kind == outer
        or _part(config)
        or cls is None
        or around is None
        or class_of(kind, around, "text_config") is not cls
    ):
        return None
    tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    return wrapper({"model_type": outer, "text_config": config, **tied})


def without_towers(model: nn.Module) -> nn.Module:
    """The model with its decoder and its head alone: every other module and parameter taken off."""
    parts = (model.get_decoder(), model.get_output_embeddings())  # type: ignore[operator]
    kept = {one for part in parts if part is not None for one in part.modules()}

    def strip(module: nn.Module) -> None:
        if module in kept:
            return
        for name in module._parameters:
            module._parameters[name] = None
        for name in module._buffers:
            module._buffers[name] = None
        for name, child in list(module.named_children()):
            strip(child)
            if not kept & set(child.modules()):
                delattr(module, name)

    strip(model)
    return model
