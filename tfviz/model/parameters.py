"""Where a model's parameters lie, each counted once however many places share it."""

from dataclasses import dataclass

import torch
from torch import nn

from tfviz.config import TransformerConfig
from tfviz.model.transformer import Transformer


@dataclass(frozen=True)
class Part:
    """Some of a model's parameters: `name` is embedding, encoder.attention, decoder.cross_attention, ... output."""

    name: str
    count: int


def count_parts(model: nn.Module) -> list[Part]:
    """The parameters by stack and kind of sublayer, in the order of the model; the counts add up to all of them."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():  # a shared matrix comes once, under its first name
        part = _part_of(name)
        counts[part] = counts.get(part, 0) + parameter.numel()
    return [Part(name, count) for name, count in counts.items()]


def count_parts_of(config: TransformerConfig) -> list[Part]:
    """The same for a config, without allocating its weights."""
    with torch.device("meta"):
        return count_parts(Transformer(config))


def _part_of(name: str) -> str:
    stack, *rest = name.split(".")
    if stack == "output":
        return "output"
    if rest[0] == "embedding":
        return {"tokens": "embedding"}.get(rest[1], f"{stack}.{rest[1]}")  # encoder.positions, encoder.norm
    if rest[0] == "norm" or rest[2].endswith("residual"):
        return f"{stack}.norm"
    return f"{stack}.{rest[2]}"
