"""The matrices of a model, wherever its tensors lie: of which kind, and what fewer bits do with each."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tfviz.inference.memory_shapes import Matrix, Weights, counted
from tfviz.inference.precision.cast import _any_part, _declared_fp32
from tfviz.inference.precision.int8 import TABLE, _is_conv1d
from tfviz.sources.layer_blocks import is_norm

ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
HEAD = re.compile(r"(^|\.)(lm_head|cls|output|vocab_\w+|predictions|embed_out|final_logits_bias|generator)(\.|$)")
LAYER = re.compile(r"^(.*?)\.?(?:^|\.)(\d+)\.")
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Held:
    """One parameter: under which names, and who holds it."""

    name: str
    parameter: nn.Parameter
    owners: tuple[nn.Module, ...]


def held_by(model: nn.Module) -> list[Held]:
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
    return [Held(names[key], parameter, tuple(owners[key])) for key, parameter in parameters.items()]


def weights_of(model: nn.Module) -> Weights:
    """Every parameter and buffer of a model, wherever it lies, by what the precisions do with it."""
    get_head: Any = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    declared = {name: _declared_fp32(model, dtype) for name, dtype in _HALVES.items()}
    matrices = []
    for held in held_by(model):
        stays = tuple(name for name, parts in declared.items() if _any_part(parts, held.name))
        shape = tuple(held.parameter.shape)
        role = _role(held, head)
        if role == "linear" and any(_is_conv1d(one) for one in held.owners):
            shape = shape[::-1]
        matrices.append(Matrix(kind_of(held, head), role, shape, stays=stays))
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


def _role(held: Held, head: Any) -> str:
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


def kind_of(held: Held, head: Any) -> str:
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
