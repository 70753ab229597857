"""Finds the additions of a layer by their numbers: after  z = x + y  somebody reads z.

A residual connection is a plain + in a model's code, no module that could be asked. But what each part of a layer read
and gave is known, so the reader of a sum gives it away: what it read equals the sum of two (or, where attention and
feed-forward stand side by side, three) earlier tensors, or z = x + s y with one number s (Granite).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, permutations

import torch
from torch import Tensor

INPUT = -1
EXACT, COARSE = 1e-5, 2e-2  # of a sum, relative to its largest value: FP32; FP16 and BF16, where order matters

Known = tuple[int, Tensor]


@dataclass(frozen=True)
class Joint:
    """One addition: it stands before part number `before` and sums the nodes `of`, the last one times `factor`."""

    before: int
    of: tuple[int, ...]
    gap: float  # largest |sum - what was read|, relative to the largest value read
    factor: float = 1.0


@dataclass(frozen=True)
class Flow:
    """Who reads what. Nodes: INPUT, then the parts 0..n-1, then the joints n, n+1, ..."""

    reads: tuple[int | None, ...]  # the node that each part reads, and at last what the layer gives; None: not found
    joints: tuple[Joint, ...]

    @property
    def gap(self) -> float | None:
        """The largest of all joints; None where a reader's source was not found."""
        return None if None in self.reads else max((joint.gap for joint in self.joints), default=0.0)


def find_flow(
    entry: Tensor | None, parts: Sequence[tuple[Tensor | None, Tensor | None]], leaving: Tensor | None
) -> Flow:
    """`parts`: what each read and gave, [pos, d_model], in the order in which they ran; None: no such tensor."""
    known: list[Known] = [] if entry is None else [(INPUT, entry)]
    reads: list[int | None] = []
    joints: list[Joint] = []
    for i, (read, gave) in enumerate([*parts, (leaving, None)]):
        joint = None if read is None else _source(i, read, known)
        node = joint.of[0] if joint else None
        if joint is not None and read is not None and len(joint.of) > 1:
            joints.append(joint)
            node = len(parts) + len(joints) - 1
            known.append((node, read))
        reads.append(node)
        if gave is not None:
            known.append((i, gave))
    return Flow(tuple(reads), tuple(joints))


def _source(before: int, read: Tensor, known: Sequence[Known]) -> Joint | None:
    """The node or the sum that `read` is: the first that fits exactly, else the closest within tolerance."""
    scale = max(float(read.abs().max()), 1e-30)
    alike = [one for one in known if one[1].shape == read.shape]
    closest: Joint | None = None
    for some, factor in _candidates(alike, read):
        first, *rest = (tensor for _, tensor in some)
        total = reduce(torch.add, rest, first) if factor == 1 else first + factor * rest[0]
        gap = float((total - read).abs().max()) / scale
        if closest is None or gap < closest.gap:
            closest = Joint(before, tuple(node for node, _ in some), gap, factor)
        if gap == 0:  # a few huge values hide the rest of a stream: what is merely close may lack a summand
            break
    tolerance = EXACT if read.dtype == torch.float32 else COARSE
    return closest if closest is not None and closest.gap <= tolerance else None


def _candidates(known: Sequence[Known], read: Tensor) -> Iterator[tuple[tuple[Known, ...], float]]:
    """One tensor (late ones first), sums of two, sums of three, and x + s y with the best s."""
    latest = list(reversed(known))
    yield from (((one,), 1.0) for one in latest)
    for size in (2, 3):
        yield from ((tuple(reversed(some)), 1.0) for some in combinations(latest, size))
    for x, y in permutations(known, 2):
        direction = y[1].flatten().double()
        yield (x, y), float((read - x[1]).flatten().double() @ direction / (direction @ direction).clamp_min(1e-30))
