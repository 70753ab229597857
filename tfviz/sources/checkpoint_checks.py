"""What a folder's files say that no loader here can follow: adapters, packed weights, counts beyond the weights.

Each check raises `ModelUnavailable` of one sentence, before anything is built or travels; `model` is the name to show.
"""

import fnmatch
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfviz.errors import ModelUnavailable, Phrase
from tfviz.sources.checkpoint_files import LONGEST_TEXT, read_json
from tfviz.sources.packed_config import packed

ADAPTER = "adapter_config.json"
LAYERS = re.compile(r"layers?$|depth$")  # num_hidden_layers, n_layer, encoder_layers ...
COUNTS = re.compile(r"^(num|n)_(?!pos|ctx)")  # num_attention_heads, n_head, num_labels ...; n_positions is a length
SHARED_LAYERS = 128  # so many layers may share the tensors of one
MOST = 100_000
LONGEST_NAME = 60


def check_adapter(folder: Path, model: str) -> None:
    """Refuses the folder of an adapter, whose weights are changes to those of another model, by both their names."""
    if not (folder / ADAPTER).exists():
        return
    try:
        said = read_json(folder / ADAPTER)
    except (OSError, ValueError):
        said = {}
    kind, base = said.get("peft_type"), said.get("base_model_name_or_path")
    raise ModelUnavailable(
        "error.adapter",
        model=model,
        method=Phrase("word.lora" if kind == "LORA" else "word.adapter", {"kind": _short(kind)}),
        base=_short(base) if base else Phrase("word.unnamed_base", {}),
    )


def check_quantised(config: Mapping[str, Any], model: str) -> None:
    """Refuses packed weights by the name of their method: what is stored are not the weights themselves."""
    levels = (level for level in (config, config.get("text_config")) if isinstance(level, Mapping))
    found = next((one for one in map(packed, levels) if one is not None), None)
    if found is not None:
        name = _short(found.method or "quantization_config")
        method = name.upper() if len(name) <= 5 else name
        if found.bits and str(found.bits) not in method:  # FP8 has them in its name
            raise ModelUnavailable(
                "error.quantised",
                model=model,
                method=Phrase("word.packed_bits", {"method": method, "bits": found.bits}),
            )
        raise ModelUnavailable("error.quantised", model=model, method=method)


def check_counts(config: Mapping[str, Any], n_tensors: int, model: str) -> None:
    """Refuses a config that counts what `n_tensors` tensors cannot be: a list of a billion layers is made before any
    layer is."""
    for name, value in _numbers(config):
        most = max(n_tensors, SHARED_LAYERS) if LAYERS.search(name) else MOST
        counts = LAYERS.search(name) or COUNTS.search(name)
        if counts and value > most:
            raise ModelUnavailable("error.config_count", model=model, name=_short(name), value=_short(value))


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    waiting = [config]
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, Mapping):
                waiting.append(value)
            elif isinstance(value, int | float):
                yield name, value


def check_files(folder: Path, wanted: Collection[str], model: str) -> None:
    """Refuses what only has the name of a file that would be read: a pipe, a folder, a text without end."""
    for path in folder.iterdir():
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in wanted):
            endless = not path.name.endswith(".safetensors") and path.is_file() and path.stat().st_size > LONGEST_TEXT
            if endless or not path.is_file():
                raise ModelUnavailable("error.odd_file", model=model, file=_short(path.name))


def _short(said: object) -> str:
    text = "".join(letter if letter.isprintable() else "�" for letter in str(said)[: LONGEST_NAME + 1])
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
