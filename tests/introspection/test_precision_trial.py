"""Precision trials: every kind of model, quality against plain arithmetic, stops, failures, and flat records."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Loaded
from tfviz.errors import UnsupportedHere
from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.introspection import precision_trial
from tfviz.introspection.precision_point import BASE, Trial, records
from tfviz.introspection.precision_quality import heads_apart, judge, reference, weight_error
from tfviz.introspection.precision_trial import timed, trial
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel

TEXTS = ["The animal didn't cross the street because it was too tired", "the cat saw the other cat near the door"]
Get = Callable[[str], LoadedModel]


def getter(model: LoadedModel) -> Get:
    made: dict[str, LoadedModel] = {BASE: model}

    def get(name: str) -> LoadedModel:
        if name not in made:
            converted = PRECISIONS[name].convert(model.model)
            size = weight_bytes(converted)
            made[name] = replace(model, precision=name, model=converted, weight_bytes=size)
        return made[name]

    return get


def last(steps: Any) -> Trial:
    *_, end = steps
    return end


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial, "ROUNDS", 1)
    monkeypatch.setattr(precision_trial, "STEPS", 2)
    monkeypatch.setattr(precision_trial, "SHORT", 0.0)
    monkeypatch.setattr(precision_trial, "PREFILL", 12)


def test_a_decoder_is_timed_and_judged_in_every_precision(loaded: Loaded) -> None:
    found = last(trial(getter(loaded("llama")), TEXTS))
    assert list(found.points) == list(PRECISIONS) and not found.failed and found.part == 1.0
    base = found.points[BASE]
    assert base.kl == 0 and base.top1 == 1 and base.weight_error == 0 and not any(map(np.any, base.maps.values()))
    assert base.perplexity is not None and base.perplexity > 1 and found.prefill_tokens == 12
    for name, point in found.points.items():
        assert point.prefill.median > 0 and point.decode is not None and point.decode.median > 0
        assert point.map_divergence is not None and point.map_divergence.shape == (3, 4)
        assert point.read == base.read and (name == BASE or (point.kl or 0) > 0)
    sizes = {name: point.weight_bytes for name, point in found.points.items()}
    assert sizes["int4"] < sizes["int8_weights"] < sizes["fp16"] < sizes["fp32"]


def test_every_speed_is_the_ratio_of_the_two_times_that_are_shown(loaded: Loaded) -> None:
    """FP32's row shows the times of all rounds, which a machine that slows down meanwhile spreads far apart."""
    found = last(trial(getter(loaded("llama")), TEXTS, ("fp32", "bf16", "fp16")))
    base = found.points[BASE]
    for point in found.points.values():
        assert point.decode is not None and base.decode is not None
        assert point.prefill_speed == base.prefill.median / point.prefill.median
        assert point.decode_speed == base.decode.median / point.decode.median


def test_an_encoder_without_a_head_is_judged_by_its_hidden_states(loaded: Loaded) -> None:
    found = last(trial(getter(loaded("bert")), TEXTS, ("fp32", "bf16")))
    point = found.points["bf16"]
    assert point.decode is None and point.decode_speed is None and point.perplexity is None
    if point.cosine is not None:
        assert 0.99 < point.cosine < 1
    else:
        assert point.kl is not None and point.kl > 0  # it has a head of its own


def test_an_encoder_decoder_reads_what_fp32_answered(loaded: Loaded) -> None:
    model = loaded("t5")
    found = last(trial(getter(model), TEXTS, ("fp32", "bf16")))
    point = found.points["bf16"]
    assert set(point.maps) == {"encoder", "decoder", "cross"} and point.decode is not None
    answers = [len(model.prompt(text, limit=128).target) for text in TEXTS]
    assert point.read == sum(answers)


@torch.inference_mode()
def test_the_figures_are_those_of_plain_arithmetic(loaded: Loaded) -> None:
    model = loaded("llama")
    other, inputs = getter(model)("int8"), model.prompt(TEXTS[0]).inputs
    fields = judge(other, inputs, reference(model, inputs, True)).fields()
    exact, found = (one.run(inputs, AttentionCall("naive"))[0].double() for one in (model, other))
    p, q = exact.softmax(-1), found.softmax(-1)
    assert fields["kl"] == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-2)
    ids = inputs["input_ids"][0]
    chosen = torch.tensor([float(q[i, ids[i + 1]]) for i in range(len(ids) - 1)])
    assert fields["perplexity"] == pytest.approx(float(chosen.log().mean().neg().exp()), rel=1e-3)
    assert fields["top1"] == float((p.argmax(-1) == q.argmax(-1)).double().mean())


def test_the_moved_share_is_half_the_absolute_difference_of_two_rows() -> None:
    exact = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])  # [head, query, key]
    found = torch.tensor([[[0.6, 0.4], [0.5, 0.5]]])
    assert heads_apart([exact], [found]) == pytest.approx(np.array([[0.2]]))  # (0.4 + 0) / 2


def test_layers_of_fewer_heads_end_in_nan() -> None:
    exact = [torch.zeros(2, 1, 1), torch.zeros(1, 1, 1)]
    apart = heads_apart(exact, exact)
    assert apart.shape == (2, 2) and np.isnan(apart[1, 1]) and not np.isnan(apart[:, 0]).any()


def test_weights_that_lie_on_a_grid_of_four_bits_are_known_by_their_rounding(loaded: Loaded) -> None:
    model = loaded("llama")
    int4 = getter(model)("int4")
    assert weight_error(model, int4) > 0.03
    again = {id(one): other for one, other in zip(model.model.modules(), int4.model.modules(), strict=True)}
    rounded = PRECISIONS["fp32"].convert(model.model)
    for one, other in zip(rounded.modules(), again.values(), strict=True):
        if hasattr(other, "dequantised"):
            one.weight = torch.nn.Parameter(other.dequantised())
    base = replace(model, model=rounded)
    assert weight_error(base, getter(base)("int4")) < 0.01


def test_a_stop_is_heard_between_two_steps_and_what_was_found_stays(loaded: Loaded) -> None:
    heard: list[Trial] = []
    for found in trial(getter(loaded("llama")), TEXTS, ("fp32", "bf16"), stop=lambda: bool(heard[-1].points)):
        heard.append(found)
    assert list(heard[-1].points) == [BASE] and 0 < heard[-1].part < 1


def test_the_part_grows_to_one(loaded: Loaded) -> None:
    parts = [found.part for found in trial(getter(loaded("llama")), TEXTS, ("bf16", "int8"))]
    assert parts == sorted(parts) and parts[-1] == 1.0


def test_one_precisions_failure_is_told_and_the_others_go_on(loaded: Loaded) -> None:
    model = getter(loaded("llama"))

    def get(name: str) -> LoadedModel:
        if name == "int8":
            raise RuntimeError("no kernel")
        return model(name)

    found = last(trial(get, TEXTS, ("fp32", "int8", "bf16")))
    assert list(found.points) == ["fp32", "bf16"] and "no kernel" in str(found.failed["int8"])


def test_no_room_refuses_before_anything_is_converted(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial, "free_bytes", lambda device: 1000)
    found = last(trial(getter(loaded("llama")), TEXTS, ("fp32", "bf16")))
    assert isinstance(found.failed["bf16"], UnsupportedHere) and list(found.points) == [BASE]


def test_a_round_times_both_in_turns(loaded: Loaded) -> None:
    get = getter(loaded("llama"))
    model, inputs = get(BASE), get(BASE).prompt(TEXTS[0]).inputs
    seconds = timed([model, get("bf16")], inputs, 1)
    assert {len(one) for one in seconds.prefill.values()} == {1}
    assert {name: len(one) for name, one in seconds.decode.items()} == {BASE: 2, "bf16": 2}


def test_records_are_flat_and_whole(loaded: Loaded) -> None:
    made = records(last(trial(getter(loaded("llama")), TEXTS, ("fp32", "bf16"))), "tiny")
    quantities = {one.quantity for one in made if one.setting["precision"] == "bf16"}
    assert {"latency", "tokens_per_second", "weight_bytes", "peak_bytes", "perplexity", "kl", "top1"} <= quantities
    for one in made:
        assert one.experiment == "precision" and one.setting["model"] == "tiny" and one.at and np.isfinite(one.value)
