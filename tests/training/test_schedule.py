"""The learning rate: the article's numbers, where it peaks, how it falls, what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfviz.errors import TfvizError
from tfviz.training import Schedule, linear_decay, noam_lr
from tfviz.training.schedule import SCHEDULES
from tfviz.training.snippets import lambda_lr


def test_the_base_model_starts_and_peaks_where_the_article_says() -> None:
    assert noam_lr(1) == pytest.approx(1.747e-7, rel=1e-3)
    assert noam_lr(2) == pytest.approx(2 * noam_lr(1))
    assert noam_lr(4000) == pytest.approx(6.988e-4, rel=1e-3)
    assert max(noam_lr(step) for step in range(1, 12_000)) == noam_lr(4000)
    assert noam_lr(16_000) == pytest.approx(noam_lr(4000) / 2)


def test_before_the_first_step_nothing_is_learnt() -> None:
    assert noam_lr(0) == 0.0


@given(st.integers(1, 200_000), st.integers(1, 20_000), st.integers(1, 4096))
def test_it_is_the_formula_at_every_step(step: int, warmup: int, d_model: int) -> None:
    expected = min(1 / math.sqrt(step), step / warmup**1.5) / math.sqrt(d_model)
    assert noam_lr(step, d_model, warmup) == pytest.approx(expected)


def test_a_run_shorter_than_its_warmup_only_rises() -> None:
    rates = [noam_lr(step, 512, warmup_steps=10_000) for step in range(100)]
    assert rates == sorted(rates) and len(set(rates)) == 100


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"step": -1}, ("step", "-1", "0")),
        ({"step": 1, "warmup_steps": 0}, ("warmup_steps", "0", "1")),
        ({"step": 1, "warmup_steps": -5}, ("warmup_steps", "-5", "1")),
        ({"step": 1, "d_model": 0}, ("d_model", "0", "1")),
    ],
)
def test_what_makes_no_rate_is_refused_with_name_value_and_bound(wrong: dict, said: tuple[str, ...]) -> None:
    with pytest.raises(TfvizError) as refused:
        noam_lr(**wrong)
    for language in ("en", "zh"):
        assert all(word in refused.value.in_language(language) for word in said)


def test_the_decay_is_one_then_a_line_then_nothing() -> None:
    assert [linear_decay(step, 4, 8) for step in (0, 3, 4, 5, 6, 7, 8, 9)] == [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    assert [linear_decay(step, 4, 4) for step in (4, 5)] == [1, 0]
    with pytest.raises(TfvizError, match="end = 3"):
        linear_decay(1, 4, 3)


def test_a_schedule_is_its_curve_times_scale_and_decay() -> None:
    plain = Schedule(128, 400)
    scaled = Schedule(128, 400, scale=0.5, decay=(1000, 2000))
    assert plain(300) == noam_lr(300, 128, 400)
    assert scaled(300) == pytest.approx(plain(300) / 2)
    assert scaled(1500) == pytest.approx(plain(1500) / 4)
    assert scaled(2000) == 0


@pytest.mark.parametrize("wrong", [{"warmup_steps": 0}, {"d_model": 0}, {"scale": 0.0}, {"decay": (5, 4)}])
def test_a_schedule_is_checked_when_it_is_made(wrong: dict) -> None:
    with pytest.raises(TfvizError):
        Schedule(**{"d_model": 128, "warmup_steps": 400} | wrong)


def test_an_unknown_schedule_is_answered_with_those_there_are() -> None:
    with pytest.raises(TfvizError, match="noam"):
        Schedule(128, 400, name="quick")


# ---- the other schedules, and the code to take away


EACH = [Schedule(512, 40, name=name, total_steps=400) for name in SCHEDULES]
by_name = pytest.mark.parametrize("schedule", EACH, ids=SCHEDULES)


@by_name
def test_every_schedule_rises_to_the_peak_of_noam_at_the_end_of_the_warmup(schedule: Schedule) -> None:
    rates = [schedule(step) for step in range(401)]
    assert rates[0] == 0 and rates[:41] == sorted(rates[:41])
    assert max(rates) == pytest.approx(rates[40]) == pytest.approx(noam_lr(40, 512, 40))
    assert rates[40:] == sorted(rates[40:], reverse=True)
    assert rates[20] == pytest.approx(rates[40] / 2)


def test_where_the_curves_are_halfway_and_at_the_end() -> None:
    share = {s.name: s(220) / s(40) for s in EACH}
    assert share["linear"] == pytest.approx(0.5) and share["cosine"] == pytest.approx(0.5)
    assert share["constant"] == share["wsd"] == 1
    assert share["noam"] == pytest.approx(share["inverse_sqrt"]) == pytest.approx((40 / 220) ** 0.5)
    assert {s.name for s in EACH if s(400) == 0} == {"linear", "cosine", "wsd"} == {s.name for s in EACH if s(500) == 0}
    assert Schedule(512, 40, name="wsd", total_steps=400)(364) / EACH[0](40) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd", "constant"])
def test_without_a_warmup_it_starts_at_the_peak(name: str) -> None:
    schedule = Schedule(512, 0, name=name, total_steps=100, peak=1e-3)
    assert schedule(1) == pytest.approx(1e-3, rel=0.02) and schedule(0) == 0


@by_name
def test_a_warmup_beyond_the_end_only_rises(schedule: Schedule) -> None:
    short = replace(schedule, total_steps=30)
    rates = [short(step) for step in range(31)]
    assert rates == sorted(rates) and rates[-1] > 0


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"name": "cosine"}, "total_steps"),
        ({"name": "inverse_sqrt", "warmup_steps": 0}, "warmup_steps"),
        ({"name": "linear", "total_steps": 0}, "total_steps"),
        ({"name": "constant", "peak": 0.0}, "peak"),
        ({"name": "constant", "warmup_steps": -1}, "warmup_steps"),
    ],
)
def test_a_schedule_without_what_it_needs_is_refused(wrong: dict, name: str) -> None:
    with pytest.raises(TfvizError, match=f"{name} = "):
        Schedule(**{"d_model": 128, "warmup_steps": 400} | wrong)


@by_name
@pytest.mark.parametrize("warmup", [0, 7, 60])
def test_the_snippet_runs_and_gives_the_same_rates(schedule: Schedule, warmup: int) -> None:
    if warmup == 0 and schedule.name in {"noam", "inverse_sqrt"}:
        warmup = 1
    schedule = replace(schedule, warmup_steps=warmup, total_steps=50)
    names: dict = {"model": torch.nn.Linear(2, 2)}
    exec(lambda_lr(schedule), names)  # what a reader would paste
    optimizer, scheduler = names["optimizer"], names["scheduler"]
    for step in range(1, 60):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(schedule(step), abs=1e-12), step
        optimizer.step()
        scheduler.step()
