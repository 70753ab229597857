"""Multiply-adds by formula against a count of the real matrix products of tiny models."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tests.model.tiny import DECODER, ENCODER_DECODER, LLAMA_LIKE, build, ids, using
from tfviz.config import TransformerConfig
from tfviz.inference.work import AttentionShape, DecoderShape, Work, keys_read, step_work, with_cache, without_cache
from tfviz.introspection.cache_cost import decoder_shape
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel

TEXT = "The animal didn't cross the street because it was too tired"
DECODERS = [name for name, (_, _, family) in ARCHITECTURES.items() if family == "decoder"]
PAIRS = [name for name, (_, _, family) in ARCHITECTURES.items() if family == "encoder-decoder"]

SMALL = DecoderShape(
    own=(AttentionShape(4, 2, 8, 8, projections=100), AttentionShape(4, 2, 8, 8, projections=100, window=3)),
    cross=(),
    feed_forward=500,
    head=70,
)


def test_the_formula_in_numbers() -> None:
    work = step_work(SMALL, 1, [5, 3])
    assert work == Work(projections=200, scores=4 * 5 * 8 + 4 * 3 * 8, values=4 * 8 * 8, feed_forward=500, head=70)
    assert work.total == 200 + 256 + 256 + 500 + 70
    assert with_cache(SMALL, 5) == work and keys_read(SMALL, 5) == [5, 3]
    assert without_cache(SMALL, 5).scores == 2 * 4 * 5 * 5 * 8  # a mask makes nothing cheaper
    assert SMALL.cached("own") == 2 * 2 * 2 * 8 * 4 and SMALL.cached("cross") == 0
    assert SMALL.linear == 700 and SMALL.attention == 2 * 4 * 16


def test_attention_is_linear_with_a_cache_and_quadratic_without() -> None:
    shape = DecoderShape(own=SMALL.own[:1], cross=(), feed_forward=500, head=70)
    with_, without = with_cache(shape, 64), without_cache(shape, 64)
    assert with_cache(shape, 128).scores == 2 * with_.scores and with_cache(shape, 128).feed_forward == 500
    assert without_cache(shape, 128).scores == 4 * without.scores
    assert without_cache(shape, 128).projections == 2 * without.projections


def test_the_memory_is_computed_once_with_a_cache_and_at_every_step_without() -> None:
    shape = DecoderShape(own=SMALL.own[:1], cross=(AttentionShape(4, 4, 8, 8, 60, memory=40),), feed_forward=0, head=0)
    assert with_cache(shape, 5, memory=10).projections == 160
    assert step_work(shape, 1, [5], memory=10).projections == 160 + 400
    assert without_cache(shape, 5, memory=10).projections == 5 * 160 + 400


def counted(loaded: LoadedModel, use_cache: bool) -> tuple[list[int], list[Work]]:
    """(products counted by torch, the formula) of a prefill and two steps."""
    prompt = loaded.prompt(TEXT, "the cat saw" if loaded.family == "encoder-decoder" else None)
    shape, call, found, said = decoder_shape(loaded, prompt), AttentionCall("naive"), [], []
    memory = prompt.n_tokens if shape.cross else 0
    with attention_call(call):
        decoding = loaded.decoding(prompt.inputs, use_cache=use_cache, fast=False)
        for step in range(3):
            with FlopCounterMode(display=False) as counter:
                logits = decoding.logits()
            total = decoding.ids.shape[1]
            new = 1 if use_cache and step else total
            held = [min(total, one.window or total) if new == 1 else total for one in shape.own]
            found.append(counter.get_total_flops() // 2)
            said.append(step_work(shape, new, held, memory, first=new > 1))
            decoding.append(logits.argmax(-1))
    return found, said


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", DECODERS)
def test_every_decoders_products_are_the_formulas(name: str, use_cache: bool, loaded: Loaded) -> None:
    found, said = counted(loaded(name), use_cache)
    assert found == [work.total for work in said]


@pytest.mark.parametrize("name", PAIRS)
def test_every_encoder_decoders_cached_products_are_the_formulas(name: str, loaded: Loaded) -> None:
    found, said = counted(loaded(name), use_cache=True)
    assert found[1:] == [work.total for work in said[1:]]  # the first step runs the encoder too


@pytest.mark.parametrize("config", [DECODER, LLAMA_LIKE, ENCODER_DECODER], ids=["gpt", "llama", "encoder-decoder"])
def test_our_own_products_are_the_formulas(config: TransformerConfig) -> None:
    model, source, dim = build(config), ids(1, 7), 4
    pair, wide = bool(config.n_encoder_layers), config.n_kv_heads or 4
    own = AttentionShape(4, wide, dim, dim, projections=2 * 16 * (4 + wide) * dim)
    cross = AttentionShape(4, 4, dim, dim, projections=2 * 16 * 16, memory=2 * 16 * 16)
    matrices = 3 if config.feed_forward == "swiglu" else 2
    shape = DecoderShape((own,) * 2, (cross,) * 2 if pair else (), 2 * matrices * 16 * 24, 16 * 23)
    n_memory = 7 if pair else 0
    with torch.inference_mode(), using("naive"):
        memory = model.encode(source) if pair else (None, None)
        cache = model.new_cache()
        model.decode(source[:, :5], *memory, cache=cache)
        with FlopCounterMode(display=False) as cached:
            model.decode(source[:, 5:6], cache=cache)
        with FlopCounterMode(display=False) as whole:
            model.decode(source[:, :6], *memory)
    assert cached.get_total_flops() // 2 == with_cache(shape, 6, n_memory).total
    assert whole.get_total_flops() // 2 == step_work(shape, 6, [6, 6], n_memory, head_rows=6).total
