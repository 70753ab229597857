"""The flat decode step computes what the modules compute, and steps aside where it does not apply."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.closeness import difference
from tests.model.tiny import DECODER, ENCODER_DECODER, LLAMA_LIKE, PAD, build, ids, using
from tfviz.config import TransformerConfig
from tfviz.inference.flat import FlatDecoder
from tfviz.inference.generate import generate
from tfviz.inference.precision import PRECISIONS
from tfviz.model import Transformer
from tfviz.model.feed_forward import FEED_FORWARDS
from tfviz.model.norm import NORMS
from tfviz.model.positions import POSITIONS
from tfviz.model.probes import probes
from tfviz.model.residual import PLACEMENTS

CPU = torch.device("cpu")
COMBINATIONS = list(product(POSITIONS, NORMS, PLACEMENTS, FEED_FORWARDS))
SHAPES = [ENCODER_DECODER, replace(ENCODER_DECODER, embedding_norm=True), LLAMA_LIKE, replace(DECODER, head_dim=6)]


def begun(model: Transformer, rows: int = 2):
    """(cache after a few tokens, the next tokens [rows, 1])"""
    cache = model.new_cache()
    memory: tuple = (None, None)
    if model.encoder is not None:
        source = ids(rows, 5, seed=3)
        source[-1, 3:] = PAD
        memory = model.encode(source)
    model.decode(ids(rows, 3), *memory, cache=cache)
    return cache, ids(rows, 1, seed=9)


@torch.no_grad()
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_a_flat_step_equals_the_modules_step(shape: int) -> None:
    for number, names in list(enumerate(COMBINATIONS))[shape % 2 :: 2]:  # each of them in two shapes of four
        choices = dict(zip(("positions", "norm", "placement", "feed_forward"), names, strict=True))
        model = build(replace(SHAPES[shape], **choices), seed=number)
        flat = FlatDecoder(model, 8, CPU)
        (cache, new), (other, _) = begun(model), begun(model)
        assert flat.suits(cache, new) == (names[0] != "alibi")
        if not flat.suits(cache, new):
            continue
        for _ in range(2):
            assert difference(flat.step(new, cache), model.decode(new, cache=other)[:, -1]) < 1e-5, names
        assert cache.length == other.length == 5 and cache.nbytes == other.nbytes


@torch.no_grad()
def test_one_may_change_between_the_two_ways_at_any_step() -> None:
    model = build(LLAMA_LIKE)
    tokens = ids(2, 7)
    flat, cache = FlatDecoder(model, 7, CPU), model.new_cache()
    found = [model.decode(tokens[:, :3], cache=cache)[:, -1]]
    for i, step in enumerate((flat.step, model.decode, flat.step, model.decode), start=3):
        new = tokens[:, i : i + 1]
        found.append(step(new, cache) if step == flat.step else model.decode(new, cache=cache)[:, -1])
    assert difference(torch.stack(found, dim=1), model.decode(tokens)[:, 2:]) < 1e-5


@pytest.mark.parametrize("config", [replace(DECODER, window=3), replace(DECODER, positions="alibi")], ids=str)
def test_it_steps_aside_for_models_that_need_a_mask_or_a_bias(config: TransformerConfig) -> None:
    model = build(config)
    assert not FlatDecoder(model, 8, CPU).suits(*begun(model))


@torch.no_grad()
def test_it_steps_aside_for_whoever_watches_and_for_the_naive_kernel() -> None:
    model = build(DECODER)
    flat = FlatDecoder(model, 8, CPU)
    cache, new = begun(model)
    assert flat.suits(cache, new)
    with using("naive"):
        assert not flat.suits(cache, new)
    for name in ("resid_mid", "weights"):
        with probes(model, name):
            assert not flat.suits(cache, new)
    assert not flat.suits(cache, torch.full_like(new, PAD)) and not flat.suits(cache, new.expand(2, 2))
    assert not flat.suits(model.new_cache(), new)
    assert not FlatDecoder(model, 3, CPU).suits(cache, new), "no room"
    assert not flat.suits(begun(model.train())[0], new)


@torch.no_grad()
def test_it_steps_aside_for_int8_and_runs_in_half_precision() -> None:
    for key, precision in PRECISIONS.items():
        model = precision.convert(build(LLAMA_LIKE))
        flat = FlatDecoder(model, 8, CPU)
        (cache, new), (other, _) = begun(model), begun(model)
        own = key in {"int8", "int8_weights"}  # layers that multiply in their own way
        assert flat.suits(cache, new) != own
        if not own:
            assert difference(flat.step(new, cache), model.decode(new, cache=other)[:, -1]) < 0.05


@torch.no_grad()
def test_a_source_that_is_all_padding_gives_no_nan() -> None:
    model = build(ENCODER_DECODER)
    source = ids(2, 4)
    source[0] = PAD
    cache = model.new_cache()
    model.decode(ids(2, 2), *model.encode(source), cache=cache)
    assert FlatDecoder(model, 8, CPU).step(ids(2, 1), cache).isfinite().all()


def test_generation_takes_the_flat_way_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, taken = build(ENCODER_DECODER), []
    step = FlatDecoder.step

    def counted(self: FlatDecoder, *arguments: object) -> torch.Tensor:
        taken.append(1)
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FlatDecoder, "step", counted)
    flat = [s.ids.tolist() for s in generate(model, ids(2, 4), max_new_tokens=12, stop_at_end=False)]
    assert len(taken) >= 8  # all but the first, and those behind a padding token if one was said
    monkeypatch.setattr(FlatDecoder, "suits", lambda *_: False)
    assert flat == [s.ids.tolist() for s in generate(model, ids(2, 4), max_new_tokens=12, stop_at_end=False)]
