"""The Training tab's data step: curves, numbers and code come from the schedules that train."""

import re
from html import unescape

import numpy as np
import pytest

from tfviz.messages import LANGUAGES
from tfviz.training import noam_lr
from tfviz.training.schedule import SCHEDULES as TABLE
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs import smoothing
from tfviz.ui.tabs.smoothing import CONFIDENCES, PADDING, RIGHT, Smoothing
from tfviz.ui.tabs.training import BESIDE, PAPER, SCHEDULES, TRIES, Rates, draw, steps_of

EN, ZH = Translator("en"), Translator("zh")


def chosen(**changes: object) -> Rates:
    return Rates(**{**PAPER, "names": ["noam"], "beside": [], "log": [], **changes})  # type: ignore[arg-type]


def cells(table: str) -> list[list[str]]:
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]


def test_the_paper_peaks_at_step_4000() -> None:
    figure, table, _ = draw(chosen(), EN)
    line = figure.data[0]
    assert line.x[line.y.argmax()] == 4000 and line.y.max() == pytest.approx(6.988e-4, rel=1e-3)
    assert line.y[0] == pytest.approx(1.747e-7, rel=1e-3)
    assert all(y == noam_lr(int(x)) for x, y in zip(line.x, line.y, strict=True))
    assert cells(table)[1] == ["Noam (the paper)", "1.75e-7", "6.99e-4", "4,000", "3.13e-4"]


def test_every_schedule_of_the_table_can_be_chosen_and_drawn() -> None:
    assert set(SCHEDULES) == set(TABLE)
    figure, table, code = draw(chosen(names=SCHEDULES, beside=[f"{d}/{w}" for d, w in BESIDE], log=["x", "y"]), ZH)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(lines) == len(SCHEDULES) + len(BESIDE) == len(cells(table)) - 1
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert len({trace.name for trace in lines}) == len(lines)
    assert "D_MODEL = 512" in code


def test_the_end_of_each_warmup_is_among_the_steps() -> None:
    for total, warmup in ((20_000, 4000), (1000, 999), (1000, 0), (1000, 5000)):
        steps = steps_of(total, warmup)
        assert steps[0] == 1 and steps[-1] == total and (np.diff(steps) > 0).all()
        assert (warmup in steps) == (1 <= warmup <= total)


def test_no_warmup_is_a_sentence_for_those_that_divide_by_it_and_the_others_are_drawn() -> None:
    for language in LANGUAGES:
        t = Translator(language)
        figure, said, _ = draw(chosen(warmup=0, names=["noam", "cosine"]), t)
        assert [trace.name for trace in figure.data if trace.mode == "lines"] == [t("training.schedule.cosine")]
        assert "warmup_steps = 0" in said and t("training.schedule.noam") in unescape(said)


def test_a_warmup_beyond_the_end_is_explained() -> None:
    _, said, _ = draw(chosen(warmup=30_000), EN)
    assert "never reaches its peak" in said


def test_nothing_chosen_is_a_sentence() -> None:
    figure, said, code = draw(chosen(names=[]), EN)
    assert not figure.data and said.count("Choose at least one schedule") == 1 and code == ""


@pytest.mark.parametrize("key, to", TRIES, ids=[key for key, _ in TRIES])
def test_what_is_offered_to_try_can_be_drawn(key: str, to: dict[str, int]) -> None:
    assert draw(chosen(**to), EN)[1] and EN(f"training.try.{key}")


# ---- label smoothing


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_every_definition_asks_for_one_in_all(epsilon: float) -> None:
    targets = smoothing.targets(Smoothing(epsilon, 10))
    assert all(q.sum() == pytest.approx(1) and len(q) == 10 for q in targets.values())
    assert targets["all"][PADDING] == pytest.approx(epsilon / 10) and targets["allowed"][PADDING] == 0
    assert targets["all"][RIGHT] == pytest.approx(1 - epsilon + epsilon / 10)
    assert targets["allowed"][RIGHT] == pytest.approx(1 - epsilon)


def test_the_lowest_loss_is_where_the_model_is_as_sure_as_the_target() -> None:
    losses = smoothing.losses(Smoothing(0.1, 10))
    assert CONFIDENCES[losses["none"].argmin()] == CONFIDENCES[-1]
    assert losses["none"] == pytest.approx(-np.log(CONFIDENCES), abs=1e-9)
    assert CONFIDENCES[losses["all"].argmin()] == pytest.approx(0.91, abs=0.002)
    q, p = 0.91, CONFIDENCES[100]
    assert losses["all"][100] == pytest.approx(-q * np.log(p) - (1 - q) * np.log((1 - p) / 9), rel=1e-6)


def test_a_model_that_is_surer_than_the_target_is_pulled_back() -> None:
    slopes = smoothing.gradients(Smoothing(0.1, 10))
    assert slopes == pytest.approx({"none": -0.01, "all": 0.99 - 0.91, "allowed": 0.99 - 0.9}, abs=1e-6)


def test_bars_curves_and_numbers_are_of_the_same_arrays() -> None:
    for t in (EN, ZH):
        bars, curves, table = smoothing.draw(Smoothing(0.1, 10), t)
        assert [len(bar.y) for bar in bars.data] == [10, 10]
        assert len([trace for trace in curves.data if trace.mode != "markers"]) == 3
        rows = cells(table)
        assert [unescape(row[0]) for row in rows[1:]] == [
            t(f"smoothing.over.{key}") for key in ("all", "allowed", "none")
        ]
        assert rows[1][1:4] == ["0.910", "0.0100", "0.0100"] and rows[2][1:4] == ["0.900", "0.0125", "0"]
        assert [bar.name for bar in bars.data] == [line.name for line in curves.data if line.mode != "markers"][:2]
        assert [bar.marker.color for bar in bars.data] == [curves.data[0].line.color, curves.data[2].line.color]
