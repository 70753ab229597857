"""A generation through transformers' own forward pass and cache, whatever the architecture.

    step    forward(new ids, cache) -> logits of the last one; the cache grows by the new keys and values
    source  an encoder reads it once, at the first step; then the cache has cross attention's keys and values

Left padding is blocked by the attention mask, and positions count real tokens (`LoadedModel.place`). A layer with a
sliding window holds its last `window - 1` keys only: to go back, the cache is filled again.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.model.attention_call import AttentionRecord, attention_call, current_call
from tfviz.model.masks import count_positions
from tfviz.sources.base import LoadedModel
from tfviz.sources.checkpoint_config import cache_holds_decoder
from tfviz.sources.decoding import HeldLayer
from tfviz.sources.stepped_decoding import SteppedDecoding


class TransformersDecoding(SteppedDecoding):
    """`loaded.model` is one of transformers' models with a decoder and a head."""

    def __init__(self, loaded: LoadedModel, inputs: Mapping[str, Tensor], use_cache: bool, record: bool) -> None:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        self.source: dict[str, Tensor] | None = None  # what the encoder reads
        self.memory: Any = None  # what it made of it
        if loaded.family == "encoder-decoder":
            self.source = {"input_ids": ids} | ({} if mask is None else {"attention_mask": mask})
            start = ids.new_full((len(ids), 1), loaded.start_id)
            ids, mask = inputs.get("decoder_input_ids", start), inputs.get("decoder_attention_mask")
        padding = None if mask is None or bool(mask.all()) else mask == 0
        super().__init__(loaded, ids, padding, use_cache, record)
        taken = inspect.signature(loaded.model.forward).parameters
        self.cache: Any = None
        self.in_sight = False  # whether it is known that its attention goes through the bridge
        self.cache_name = "cache" if "cache" in taken else "past_key_values"
        if use_cache and (self.cache_name not in taken or not cache_holds_decoder(loaded.model.config)):
            raise UnsupportedHere("error.generation.no_cache", model=loaded.label)
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self.first_place = None if padding is None else self._first_place()

    def _first_place(self) -> int | None:
        """Where positions begin for a model that has to be told them; None: it sees the padding in the mask."""
        told = self.loaded.place(self.ids.new_zeros(1, 1))
        if told:
            return int(told["position_ids"])
        config: Any = self.loaded.model.config
        if self.source is not None and getattr(config, "max_position_embeddings", None):  # BART's table of positions
            raise TfvizError("error.generation.padded_target", model=self.loaded.label)
        return None

    def read(self, start: int, stop: int) -> Float[Tensor, "batch vocab"]:
        side = "" if self.source is None else "decoder_"
        told: dict[str, Any] = {**self.options, f"{side}input_ids": self.ids[:, start:stop]}
        if self.padding is not None:
            told[f"{side}attention_mask"] = (~self.padding[:, :stop]).long()
        if self.padding is not None and self.first_place is not None:
            positions = count_positions(self.padding[:, :stop], stop, self.ids.device)[:, start:]
            told["position_ids"] = positions + self.first_place
        if self.source is not None:
            if self.memory is None:
                self.memory = self.loaded.model.get_encoder()(**self.source)  # type: ignore[operator]
            told |= {"encoder_outputs": self.memory, "attention_mask": self.source.get("attention_mask")}
        if self.use_cache:
            told[self.cache_name] = self.cache
        output = self._forward(told)
        if self.use_cache:
            self.cache = getattr(output, self.cache_name, None)
            if self.cache is None:
                raise UnsupportedHere("error.generation.no_cache", model=self.loaded.label)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _forward(self, told: Mapping[str, Any]) -> Any:
        """The first pass is watched: a model that computes its attention out of sight takes our masks for its own."""
        call, found = current_call(), []

        def watch(record: AttentionRecord) -> None:
            found.append(record.module)
            if call.watch is not None:
                call.watch(record)

        try:
            with attention_call(call if self.in_sight else replace(call, watch=watch)):
                output = self.loaded.model(**told, use_cache=self.use_cache)
        except AttributeError as error:
            if found or self.in_sight:
                raise
            raise UnsupportedHere("error.no_attention", model=self.loaded.label) from error  # it stumbles over our mask
        if not found and not self.in_sight:
            raise UnsupportedHere("error.no_attention", model=self.loaded.label)
        self.in_sight = True
        return output

    def cut(self, length: int) -> int:
        try:
            if length and self.cache.is_croppable:
                self.cache.crop(length - self.cache.get_seq_length())
                return length
        except RuntimeError:  # a layer has dropped what would be needed: the whole cache is filled again
            pass
        self.cache = None
        return 0

    @torch.inference_mode()
    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        super().keep(rows)
        if self.cache is not None:
            self.cache.reorder_cache(rows)
        if self.source is not None:
            self.source = {name: tensor[rows] for name, tensor in self.source.items()}
        if self.memory is not None:
            self.memory = type(self.memory)(last_hidden_state=self.memory[0][rows])

    def held(self) -> list[HeldLayer]:
        if self.cache is None:
            return []
        if self.source is None:
            return self._layers("self", self.cache)
        own, cross = self.cache.self_attention_cache, self.cache.cross_attention_cache
        return self._layers("decoder", own) + self._layers("cross", cross)

    def _layers(self, kind: str, cache: Any) -> list[HeldLayer]:
        """Those that hold keys and values, counted as attentions are: a state space or a convolution has none."""
        held: list[HeldLayer] = []
        for layer in cache.layers:
            key, value = getattr(layer, "keys", None), getattr(layer, "values", None)
            if key is not None and value is not None and key.numel():
                first = layer.get_seq_length() - key.shape[2]
                held.append(HeldLayer(kind, len(held), key, value, first, self.loaded.window(kind, len(held))))
        return held
