"""Which entries of a config.json a model type listens to: what its config class declares, and what its code reads.

About sixty of transformers' config classes do not declare an entry that their model reads all the same
(`getattr(config, "head_dim", None)`), or take it as a keyword and turn it into others. Both are found in the text of
the two modules that belong to the class; neither is imported for it.
"""

import re
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

READ = re.compile(r"""config\.(\w+)|config,\s*["'](\w+)["']|kwargs\.(?:pop|get)\(\s*["'](\w+)["']""")
EVERYWHERE = set("tie_word_embeddings per_layer_config layer_types sliding_window attention_chunk_size".split())


@cache
def declared(cls: Any) -> dict[str, str]:
    """Declared entries and their types, those of a text part among them: some files have it flat in the outer one."""
    inside = cls.sub_configs.get("text_config")
    flat = declared(inside) if inside is not None and issubclass(inside, PreTrainedConfig) else {}
    return {**flat, **{field.name: str(field.type) for field in fields(cls)}}


@cache
def known_names(cls: Any) -> frozenset[str]:
    """Names of all entries that change a model of this config class."""
    names = set(declared(cls)) | set(cls.attribute_map)
    unclaimed = {name for name in _read(cls) if not name.startswith("_") and not hasattr(cls, name)}
    return frozenset(names | unclaimed | EVERYWHERE)


@cache
def taken(cls: Any) -> frozenset[str]:
    """Undeclared entries that the config class takes as keywords and turns into others: `n_embed` of BLOOM's files."""
    spec = find_spec(cls.__module__)
    text = "" if spec is None else spec.loader.get_source(spec.name) or ""  # type: ignore[union-attr]
    return frozenset(keyword for _, _, keyword in READ.findall(text) if keyword) & known_names(cls)


def _read(cls: Any) -> set[str]:
    """Entries that the config class takes as keywords, and those that its model's code reads."""
    modelling = cls.__module__.replace("configuration_", "modeling_")
    if find_spec(modelling) is None and cls in MODEL_MAPPING:  # another model type's code
        modelling = MODEL_MAPPING[cls].__module__
    specs = [find_spec(name) for name in (cls.__module__, modelling)]
    texts = (one.loader.get_source(one.name) or "" for one in specs if one is not None)  # type: ignore[union-attr]
    return {name for text in texts for found in READ.findall(text) for name in found if name}


def class_of(kind: Any, around: Any = None, part: str = "") -> Any:
    """The config class of a model type, None for an unknown one; inside another the one that it has for this part."""
    spec = around.sub_configs_defaults.get(part) if around is not None else None
    if spec is not None and issubclass(spec.config_class, PreTrainedConfig):
        return spec.config_class
    kind = kind if kind is not None or spec is None else spec.model_type
    return CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else None
