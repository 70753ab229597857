"""A trained model as one safetensors file: FP16 weights, and in its metadata all that is needed to use and judge it.

Metadata, each value JSON: `tfviz` (format version), `config` (`TransformerConfig.to_dict()`), `vocabulary` (list, index
= id), `seed`, `recipe`, `data`, `score`. Tensors: the model's parameters under their names in `named_parameters()`,
where a matrix that is used in several places stands once, under the first of its names.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

FORMAT = 1


def rounded(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter once, in FP16 on the CPU."""
    return {name: weight.detach().half().cpu().contiguous() for name, weight in model.named_parameters()}


def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts `weights` into the model in its own precision; shared matrices follow. `KeyError` unless all are there."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        raise KeyError(f"weights and model differ in {sorted(parameters.keys() ^ weights.keys())}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def write(path: Path, weights: Mapping[str, Tensor], **metadata: Any) -> None:
    """`metadata` as the module says; every value becomes JSON. The same content gives the same bytes."""
    strings = {key: json.dumps(value, ensure_ascii=False) for key, value in {"tfviz": FORMAT, **metadata}.items()}
    data = save(dict(weights), metadata=strings)
    start = 8 + int.from_bytes(data[:8], "little")  # a length, a JSON header of that length, the numbers
    header = json.dumps(json.loads(data[8:start]), ensure_ascii=False, sort_keys=True).encode()  # came in any order
    header += b" " * (-len(header) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")  # a file that is being written never stands in the place of a whole one
    part.write_bytes(len(header).to_bytes(8, "little") + header + data[start:])
    part.replace(path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(weights, metadata), the JSON parsed."""
    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}
        metadata = {key: json.loads(value) for key, value in file.metadata().items()}
    return weights, metadata
