"""The learning rate: the article's numbers, where it peaks, how it falls, what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfviz.errors import TfvizError
from tfviz.training import Schedule, linear_decay, noam_lr


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
        Schedule(128, 400, name="linear")
