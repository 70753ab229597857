"""Every combination of the tables builds, and agrees with itself: naive = flash, cached = uncached, both families."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.closeness import difference
from tests.model.tiny import ENCODER_DECODER, PAD, build, ids, using
from tfviz.config import TransformerConfig
from tfviz.model.attention import ATTENTION_KERNELS
from tfviz.model.feed_forward import FEED_FORWARDS
from tfviz.model.norm import NORMS
from tfviz.model.positions import POSITIONS
from tfviz.model.residual import PLACEMENTS

COMBINATIONS = list(product(POSITIONS, NORMS, PLACEMENTS, FEED_FORWARDS))


def shapes(number: int) -> list[TransformerConfig]:
    """An encoder-decoder, and a decoder with grouped heads; every second one of each has a window."""
    window = 2 if number % 2 else None
    small = replace(ENCODER_DECODER, n_encoder_layers=1, n_decoder_layers=1, window=window)
    return [small, replace(small, n_encoder_layers=0, n_kv_heads=2)]


@torch.no_grad()
@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=["-".join(names) for names in COMBINATIONS])
def test_every_combination_gives_the_same_logits_by_every_kernel_with_and_without_cache(number: int) -> None:
    names = zip(("positions", "norm", "placement", "feed_forward"), COMBINATIONS[number], strict=True)
    choices = dict(names)
    source, target = ids(2, 4, seed=number), ids(2, 4, seed=number + 1)
    source[1, 3:], target[0, :1] = PAD, PAD
    for config in shapes(number):
        model = build(config, **choices)
        memory = model.encode(source) if model.encoder is not None else (None, None)
        first = None
        for kernel in ATTENTION_KERNELS:
            with using(kernel):
                logits, cache = model.decode(target, *memory), model.new_cache()
                steps = [model.decode(part, *memory, cache=cache) for part in target.split([2, 1, 1], dim=1)]
            first = logits if first is None else first
            assert logits.isfinite().all()
            assert difference(logits, first) < 1e-5, f"{kernel} differs"
            assert difference(torch.cat(steps, 1), logits) < 1e-5, f"{kernel} over a cache differs"


def test_the_tables_hold_what_the_article_and_its_kin_need() -> None:
    assert POSITIONS.keys() >= {"sinusoidal", "learned", "rope", "alibi", "none"}
    assert NORMS.keys() >= {"layer_norm", "rms_norm"} and PLACEMENTS.keys() >= {"post", "pre"}
    assert FEED_FORWARDS.keys() >= {"relu", "gelu", "gelu_tanh", "swiglu"}
    assert ATTENTION_KERNELS.keys() >= {"naive", "flash"}
