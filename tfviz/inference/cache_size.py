"""How many bytes a key/value cache takes, from a model's numbers alone: for planning, before anything is loaded.

    bytes = batch x sum over layers of held(n) x kv_heads x (bytes of one key + bytes of one value)

    held(n) = n                      attention that looks at everything
            = min(n, window - 1)     sliding: the new token itself is the last of its window
            = length of the source   cross attention, written once

MLA (DeepSeek-V2, https://arxiv.org/abs/2405.04434) holds one latent of kv_lora_rank numbers and one rotated key of
qk_rope_head_dim numbers for all heads together: one "head" whose key and value are these two.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

MOST_POSITIONS = 1 << 40  # beyond this a context counts as endless


@dataclass(frozen=True)
class CachePrecision:
    """How a number is stored; `group` numbers of a vector share an FP16 scale and an FP16 zero point (0: none do)."""

    bits: int
    group: int = 0

    def vector_bytes(self, dim: int) -> int:
        """One key or value of one head, packed, with its scales and zero points."""
        scales = 4 * -(-dim // self.group) if self.group else 0
        return -(-dim * self.bits // 8) + scales


FP16 = CachePrecision(16)
CACHE_PRECISIONS = {
    "fp32": CachePrecision(32),
    "fp16": FP16,
    "fp8": CachePrecision(8),  # one scale for a whole tensor: not worth counting
    "int8": CachePrecision(8, group=32),
    "int4": CachePrecision(4, group=32),
}


KEEPING_NOTHING = ("shared", "state", "image")  # reads another layer's; does not grow; reads what was made of an image


@dataclass(frozen=True)
class CacheLayer:
    """What one layer keeps of each position."""

    kind: str  # full | sliding | chunked | cross; those of KEEPING_NOTHING keep nothing of the text
    n_heads: int = 0  # of keys and values
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    unfolded: int = 0  # MLA: numbers of a position that the keys and values of all its heads have together

    def held(self, context: int, source: int = 0) -> int:
        """Positions that stay between two steps; `source` is the length that a cross attention reads."""
        if self.kind in KEEPING_NOTHING:
            return 0
        if self.kind == "cross":
            return source
        return context if self.window is None else min(context, self.window - 1)

    def position_bytes(self, precision: CachePrecision) -> int:
        return self.n_heads * (precision.vector_bytes(self.key_dim) + precision.vector_bytes(self.value_dim))


@dataclass(frozen=True)
class Packed:
    """How a checkpoint's own file is quantised; what is planned here does not depend on it."""

    method: str = ""
    bits: int | None = None  # None: its config does not say


@dataclass(frozen=True)
class CacheShape:
    """A model as far as its cache goes. An encoder has no layers here: it keeps nothing."""

    label: str
    family: str  # decoder | encoder | encoder-decoder
    layers: Sequence[CacheLayer]
    limit: int | None = None  # positions that the model has; None: no end that its config would name
    n_parameters: int | None = None  # of the whole model, where it is known
    n_query_heads: int = 0  # of one layer, for what keys and values of all heads would take
    remarks: Sequence[str] = ()  # keys of sentences: what was assumed or left out
    packed: Packed | None = None  # the file is quantised

    @cached_property
    def kinds(self) -> dict[CacheLayer, int]:
        """Each different layer and how many there are of it, in the order in which they come."""
        return dict(Counter(self.layers))

    @property
    def grows(self) -> bool:
        """Whether every further token takes more memory, however long the text is."""
        return any(layer.kind == "full" for layer in self.layers)


def cache_bytes(
    shape: CacheShape,
    context: int,
    batch: int = 1,
    precision: CachePrecision = FP16,
    source: int = 0,
) -> int:
    """Bytes of the whole cache with `context` positions in each of `batch` rows."""
    return batch * sum(
        n * layer.held(context, source) * layer.position_bytes(precision) for layer, n in shape.kinds.items()
    )


def largest_context(
    shape: CacheShape,
    memory: int,
    batch: int = 1,
    precision: CachePrecision = FP16,
    source: int = 0,
) -> int | None:
    """The most positions whose cache takes at most `memory` bytes; 0 if none, None if any number fits."""

    def fits(context: int) -> bool:
        return cache_bytes(shape, context, batch, precision, source) <= memory

    if fits(MOST_POSITIONS):
        return None
    low, high = 0, MOST_POSITIONS  # `low` fits (or is 0), `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
