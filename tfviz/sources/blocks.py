"""What a model is made of, as data: weights in blocks, blocks in layers, layers in stacks. Made by architecture.py."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tfviz.sources.module_calls import own_weights

INPUT = -1  # the index that stands for what a layer reads


@dataclass(frozen=True)
class Weight:
    """One tensor; `shared` where an earlier block has counted it (tied matrices)."""

    name: str  # as in the checkpoint
    shape: tuple[int, ...]
    count: int
    shared: bool


@dataclass(frozen=True)
class Block:
    """`kind`: embedding, segments, positions, norm, attention, cross, feed_forward, add, linear, head or other."""

    kind: str
    path: str
    weights: tuple[Weight, ...] = ()
    shape: tuple[int, ...] = ()  # of what it gives, without the batch
    reads: tuple[int, ...] = ()  # inside a layer: the blocks whose outputs it reads; INPUT: what the layer reads
    detail: Mapping[str, Any] = field(default_factory=dict)  # heads, widths, class: what a drawing may say

    @property
    def parameters(self) -> int:
        return sum(weight.count for weight in self.weights if not weight.shared)


@dataclass(frozen=True)
class Layer:
    """One run of one layer."""

    path: str
    blocks: tuple[Block, ...]
    attention: int | None  # the number of its attention in a trace; None: it has none
    cross: int | None
    gap: float | None  # largest relative |x + y - what was read| over its additions; None: not all were found

    @property
    def parameters(self) -> int:
        return sum(block.parameters for block in self.blocks)


@dataclass(frozen=True)
class Side:
    """One stack: "self" of a model that has one, "encoder" or "decoder" of one that has two."""

    name: str
    n_tokens: int
    before: tuple[Block, ...]
    layers: tuple[Layer, ...]
    after: tuple[Block, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (*self.before, *(block for layer in self.layers for block in layer.blocks), *self.after)


@dataclass(frozen=True)
class Architecture:
    """All of a model."""

    d_model: int
    sides: tuple[Side, ...]
    unused: tuple[Block, ...]  # weights that this sentence did not touch
    total: int  # parameters as counted when the model was loaded, not from the blocks

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (*(block for side in self.sides for block in side.blocks), *self.unused)


class Ledger:
    """Counts each weight once however many modules share it, in the order in which it is asked."""

    def __init__(self) -> None:
        self._first: dict[int, str] = {}

    def weights(self, modules: Iterable[tuple[str, nn.Module]]) -> tuple[Weight, ...]:
        """The weights that lie in these modules themselves; a layer that runs twice has them the first time only."""
        found = []
        for path, module in modules:
            for name, tensor, place in own_weights(module):
                name = f"{path}.{name}"
                shared = place in self._first
                self._first.setdefault(place, name)
                found.append(Weight(name, tuple(tensor.shape), tensor.numel(), shared))
        return tuple(found)
