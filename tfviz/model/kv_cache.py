"""Keys and values of what was seen already, so that a decode step computes those of its new token only.

Bytes a token: 2 x layers x kv_heads x head_dim x bytes of a number. Cross attention's keys and values come from the
encoder's memory and never change: computed at the first step, read at all others.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfviz.checks import whole
from tfviz.errors import TfvizError

Keys = Float[Tensor, "batch kv_head pos dim"]
Values = Float[Tensor, "batch kv_head pos value_dim"]
MemoryMask = Bool[Tensor, "batch 1 1 source"]
SMALLEST = 32  # positions that the first allocation has room for


class AttentionCache:
    """One self-attention: grows by doubling, so that a step copies its own token and seldom the rest."""

    complete = False

    def __init__(self) -> None:
        self._key: Tensor | None = None  # [batch, kv_head, room, dim], rotation applied
        self._value: Tensor | None = None
        self.length = 0

    def extend(self, key: Keys, value: Values) -> tuple[Tensor, Tensor]:
        """Appends the new positions and gives all of them. Inference only: gradients do not flow through a cache."""
        if self._key is not None and key.shape[0] != self._key.shape[0]:
            raise TfvizError("error.cache_rows", n=key.shape[0], held=self._key.shape[0])
        total = self.length + key.shape[2]
        self._key, self._value = self._with_room(self._key, key, total), self._with_room(self._value, value, total)
        self._key[:, :, self.length : total] = key
        self._value[:, :, self.length : total] = value
        self.length = total
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        assert self._key is not None and self._value is not None, "nothing was put in yet"
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def _with_room(self, held: Tensor | None, new: Tensor, total: int) -> Tensor:
        if held is not None and held.shape[2] >= total:
            return held
        batch, heads, _, dim = new.shape
        grown = new.new_empty(batch, heads, max(SMALLEST, total, 0 if held is None else 2 * held.shape[2]), dim)
        if held is not None:
            grown[:, :, : self.length] = held[:, :, : self.length]
        return grown

    def crop(self, length: int) -> None:
        """Forgets what came after the first `length` positions; their room stays."""
        self.length = min(length, self.length)

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key[rows], self._value[rows]

    @property
    def nbytes(self) -> int:
        """Bytes of the positions in use, by the tensors that hold them."""
        held = () if self._key is None or self._value is None else (self._key, self._value)
        return sum(each.nbytes // each.shape[2] * self.length for each in held)


class MemoryCache:
    """One cross-attention: written once."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def complete(self) -> bool:
        return self._held is not None

    def extend(self, key: Keys, value: Values) -> tuple[Tensor, Tensor]:
        self._held = key, value
        return self._held

    def read(self) -> tuple[Tensor, Tensor]:
        assert self._held is not None, "nothing was put in yet"
        return self._held

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        if self._held is not None:
            self._held = self._held[0][rows], self._held[1][rows]

    @property
    def nbytes(self) -> int:
        return 0 if self._held is None else sum(held.numel() * held.element_size() for held in self._held)


class KVCache:
    """The caches of a decoder's layers, and which of the positions seen so far, and of the memory, are padding."""

    def __init__(self, n_layers: int) -> None:
        self.self_attention = [AttentionCache() for _ in range(n_layers)]
        self.cross_attention = [MemoryCache() for _ in range(n_layers)]
        self.length = 0  # positions seen
        self.padding: Bool[Tensor, "batch pos"] | None = None  # None: none of them is
        self.memory_mask: MemoryMask | None = None  # of the memory that was written

    def see(self, n_new: int, padding: Bool[Tensor, "batch new"] | None) -> Bool[Tensor, "batch pos"] | None:
        """Counts `n_new` positions more and gives the padding of all."""
        if padding is not None or self.padding is not None:
            known = padding if padding is not None else self.padding
            assert known is not None
            before = self.padding if self.padding is not None else known.new_zeros(len(known), self.length)
            new = padding if padding is not None else known.new_zeros(len(known), n_new)
            self.padding = torch.cat([before, new], dim=1)
        self.length += n_new
        return self.padding

    def keep_memory_mask(self, mask: MemoryMask | None) -> MemoryMask | None:
        """The mask that came with the memory, at the first step: a later one need bring neither."""
        if not self.length:
            self.memory_mask = mask
        return self.memory_mask

    def crop(self, length: int) -> None:
        """Back to the first `length` positions (0 or more): the next ones are written over what came after."""
        whole("length", length, 0)
        self.length = min(length, self.length)
        self.padding = None if self.padding is None else self.padding[:, :length]
        for cache in self.self_attention:  # the memory stays: it is the same at every step
            cache.crop(length)

    @property
    def _caches(self) -> list[AttentionCache | MemoryCache]:
        return [*self.self_attention, *self.cross_attention]

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps these rows of the batch, in this order; a row may be kept twice (beams that share a beginning)."""
        for cache in self._caches:
            cache.reorder(rows)
        self.padding = None if self.padding is None else self.padding[rows]
        self.memory_mask = None if self.memory_mask is None else self.memory_mask[rows]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values in use, self and cross together."""
        return sum(cache.nbytes for cache in self._caches)
