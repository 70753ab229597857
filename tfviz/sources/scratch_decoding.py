"""A generation with one of our own Transformers, over its cache; a step written flat where one will do.

source    an encoder reads it once, at the first step; then the cache has cross attention's keys and values
padding   is the pad id, which the model finds by itself; positions count what is none
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.inference.flat import FlatDecoder
from tfviz.inference.generate import FLAT_ROOM
from tfviz.model.kv_cache import AttentionCache, KVCache, MemoryCache
from tfviz.model.masks import find_padding
from tfviz.model.transformer import Transformer
from tfviz.sources.base import LoadedModel
from tfviz.sources.decoding import HeldLayer
from tfviz.sources.stepped_decoding import SteppedDecoding


class ScratchDecoding(SteppedDecoding):
    """`loaded.model` is a tfviz.model.Transformer with a decoder."""

    def __init__(
        self, loaded: LoadedModel, inputs: Mapping[str, Tensor], use_cache: bool, record: bool, fast: bool
    ) -> None:
        assert isinstance(loaded.model, Transformer), type(loaded.model)
        self.model, config = loaded.model, loaded.model.config
        ids, self.source = inputs["input_ids"], None
        if config.n_encoder_layers:
            start = ids.new_full((len(ids), 1), config.start_id)
            ids, self.source = inputs.get("decoder_input_ids", start), ids
        super().__init__(loaded, ids, find_padding(ids, config.pad_id), use_cache, record)
        self.cache: KVCache | None = self.model.new_cache() if use_cache else None
        self.memory: tuple[Tensor, Tensor | None] | tuple[None, None] = (None, None)
        self.flat = FlatDecoder(self.model, min(loaded.token_limit, FLAT_ROOM), ids.device) if fast else None

    def read(self, start: int, stop: int) -> Float[Tensor, "batch vocab"]:
        ids, decoder = self.ids[:, start:stop], self.model.decoder
        if self.cache is not None and self.flat is not None and self.flat.suits(self.cache, ids):
            return self.flat.step(ids, self.cache)
        if self.source is not None and self.memory[0] is None:
            self.memory = self.model.encode(self.source)
        assert decoder is not None, "families without one are refused"
        return self.model.output(decoder(ids, *self.memory, self.cache)[:, -1])

    def cut(self, length: int) -> int:
        if self.cache is None:
            return 0
        self.cache.crop(length)
        return self.cache.length

    @torch.inference_mode()
    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        super().keep(rows)
        memory, mask = self.memory
        if memory is not None:
            self.memory = memory[rows], None if mask is None else mask[rows]
        self.source = None if self.source is None else self.source[rows]
        if self.cache is not None:
            self.cache.reorder(rows)

    def held(self) -> list[HeldLayer]:
        if self.cache is None or not self.cache.length:
            return []
        own = "self" if self.source is None else "decoder"
        caches: list[tuple[str, int, AttentionCache | MemoryCache]]
        caches = [(own, i, cache) for i, cache in enumerate(self.cache.self_attention)]
        if self.source is not None:
            caches += [("cross", i, cache) for i, cache in enumerate(self.cache.cross_attention)]
        return [HeldLayer(kind, i, *cache.read(), 0, self.loaded.window(kind, i)) for kind, i, cache in caches]
