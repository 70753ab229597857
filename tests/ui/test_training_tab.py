"""The Training tab's sections: numbers, curves and code come from what trains; badges turn red where an array lies."""

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from inspect import isgenerator
from types import SimpleNamespace
from typing import Any

import gradio as gr
import numpy as np
import pytest

from tfviz.messages import LANGUAGES
from tfviz.training import noam_lr
from tfviz.training.schedule import SCHEDULES as TABLE
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.components.section import Section
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.training import SECTIONS, accumulation, clipping, dropout, precision, smoothing, tying
from tfviz.ui.tabs.training.rate import BESIDE, PAPER, SCHEDULES, TRIES, Rates, picture, steps_of
from tfviz.ui.tabs.training.smoothing import CONFIDENCES, PADDING, RIGHT, Smoothing

EN, ZH = Translator("en"), Translator("zh")
BY_KEY = {section.key: section for section in SECTIONS}


def scene(t: Translator = EN, stop: Callable[[], bool] = lambda: False) -> Any:
    return SimpleNamespace(t=t, stop=stop, compute=lambda job, *args: job(*args))


def first_values(section: Section, t: Translator = EN) -> dict[str, Any]:
    with gr.Blocks():
        return {name: control.value for name, control in section.controls(t).items()}


def pictures(section: Section, t: Translator = EN, **changes: Any) -> list[Picture]:
    """Everything that a section draws, from first to last."""
    drawn = section.draw(scene(t), **{**first_values(section, t), **changes})
    return list(drawn) if isgenerator(drawn) else [drawn]


def last(section: Section, t: Translator = EN, **changes: Any) -> Picture:
    return pictures(section, t, **changes)[-1]


def cells(table: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def reds(drawn: Picture) -> list[str]:
    return [badge.text for badge in drawn.badges if badge.ok is False]


# ---- all sections


@pytest.mark.parametrize("key", BY_KEY)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_section_draws_itself_and_every_check_holds(key: str, language: str) -> None:
    drawn = last(BY_KEY[key], Translator(language))
    assert drawn.panels and not reds(drawn) and drawn.part is None
    assert payload(drawn)["panels"] and not BY_KEY[key].needs_trace


@pytest.mark.parametrize("key", BY_KEY)
def test_its_words_are_there(key: str) -> None:
    section = BY_KEY[key]
    for t in (EN, ZH):
        assert t(f"{key}.name") and t(f"{key}.title") and t(f"{key}.intro")
        assert all(t(f"{key}.try.{one.key}") for one in section.tries)
    assert all(name in first_values(section) for one in section.tries for name in one.values)


@pytest.mark.parametrize("key, at", [(key, i) for key in BY_KEY for i in range(len(BY_KEY[key].tries))])
def test_what_is_offered_to_try_can_be_drawn(key: str, at: int) -> None:
    assert not reds(last(BY_KEY[key], **BY_KEY[key].tries[at].values))


@pytest.mark.parametrize("key", BY_KEY)
def test_it_shows_its_code(key: str) -> None:
    from tfviz.ui.components.code import show_code

    assert "def " in show_code(EN, *BY_KEY[key].code())


def test_a_newer_wish_ends_a_measurement() -> None:
    for key in ("training.clipping", "training.dropout", "training.accumulation"):
        section = BY_KEY[key]
        assert list(section.draw(scene(stop=lambda: True), **first_values(section))) == []


# ---- learning rate


def chosen(**changes: object) -> Rates:
    return Rates(**{**PAPER, "names": ["noam"], "beside": [], "log": [], **changes})  # type: ignore[arg-type]


def parts(drawn: Picture) -> tuple[Any, str, str]:
    """(figure, table, code)"""
    figure, table, code = drawn.panels
    return figure.figure, table.html, code.html


def test_the_paper_peaks_at_step_4000() -> None:
    figure, table, _ = parts(picture(chosen(), EN))
    line = figure.data[0]
    assert line.x[line.y.argmax()] == 4000 and line.y.max() == pytest.approx(6.988e-4, rel=1e-3)
    assert line.y[0] == pytest.approx(1.747e-7, rel=1e-3)
    assert all(y == noam_lr(int(x)) for x, y in zip(line.x, line.y, strict=True))
    assert cells(table)[1] == ["Noam (the paper)", "1.75e-7", "6.99e-4", "4,000", "3.13e-4"]


def test_every_schedule_of_the_table_can_be_chosen_and_drawn() -> None:
    assert set(SCHEDULES) == set(TABLE)
    everything = chosen(names=SCHEDULES, beside=[f"{d}/{w}" for d, w in BESIDE], log=["x", "y"])
    figure, table, code = parts(picture(everything, ZH))
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
        drawn = picture(chosen(warmup=0, names=["noam", "cosine"]), t)
        figure, _, _ = parts(drawn)
        assert [trace.name for trace in figure.data if trace.mode == "lines"] == [t("training.schedule.cosine")]
        (said,) = drawn.notes
        assert "warmup_steps = 0" in said and t("training.schedule.noam") in said


def test_a_warmup_beyond_the_end_is_explained() -> None:
    (said,) = picture(chosen(warmup=30_000), EN).notes
    assert "never reaches its peak" in said


def test_nothing_chosen_is_a_sentence() -> None:
    drawn = picture(chosen(names=[]), EN)
    assert not drawn.panels[0].figure.data and len(drawn.panels) == 1  # type: ignore[union-attr]
    assert drawn.notes == ["Choose at least one schedule."]


def test_a_try_starts_from_the_paper() -> None:
    assert all(one.values.keys() == PAPER.keys() for one in TRIES)
    assert all(sum(one.values[name] != PAPER[name] for name in PAPER) == 1 for one in TRIES)


# ---- label smoothing


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_every_definition_asks_for_one_in_all(epsilon: float) -> None:
    asked = smoothing.look(Smoothing(epsilon, 10))
    assert all(one.target.sum() == pytest.approx(1) and len(one.target) == 10 for one in asked.values())
    assert asked["all"].target[PADDING] == pytest.approx(epsilon / 10) and asked["allowed"].target[PADDING] == 0
    assert asked["all"].target[RIGHT] == pytest.approx(1 - epsilon + epsilon / 10)
    assert asked["allowed"].target[RIGHT] == pytest.approx(1 - epsilon)


def test_the_lowest_loss_is_where_the_model_is_as_sure_as_the_target() -> None:
    asked = smoothing.look(Smoothing(0.1, 10))
    assert CONFIDENCES[asked["none"].loss.argmin()] == CONFIDENCES[-1]
    assert asked["none"].loss == pytest.approx(-np.log(CONFIDENCES), abs=1e-9)
    assert CONFIDENCES[asked["all"].loss.argmin()] == pytest.approx(0.91, abs=0.002)
    q, p = 0.91, CONFIDENCES[100]
    assert asked["all"].loss[100] == pytest.approx(-q * np.log(p) - (1 - q) * np.log((1 - p) / 9), rel=1e-6)


def test_a_model_that_is_surer_than_the_target_is_pulled_back() -> None:
    asked = smoothing.look(Smoothing(0.1, 10))
    for key, q in {"none": 1, "all": 0.91, "allowed": 0.9}.items():
        assert asked[key].slope == pytest.approx(CONFIDENCES - q, abs=1e-6)


def test_loss_and_slope_are_those_of_the_loss_that_trains() -> None:
    import torch

    from tfviz.training import LabelSmoothingLoss

    asked, logits = smoothing.look(Smoothing(0.3, 7)), torch.from_numpy(smoothing.logits_of(7))
    for over in smoothing.DEFINITIONS:
        ours = [float(LabelSmoothingLoss(7, PADDING, 0.3, over)(row[None], torch.tensor([RIGHT]))) for row in logits]
        assert asked[over].loss == pytest.approx(ours, abs=1e-6)


def test_bars_curves_and_numbers_are_of_the_same_arrays() -> None:
    for t in (EN, ZH):
        drawn = last(smoothing.SECTION, t)
        bars, losses, slopes, table = drawn.panels
        assert [len(bar.y) for bar in bars.figure.data] == [10, 10]
        for curves in (losses, slopes):
            assert len([trace for trace in curves.figure.data if trace.mode != "markers"]) == 3
        rows = cells(table.html)
        assert [row[0] for row in rows[1:]] == [t(f"smoothing.over.{key}") for key in ("all", "allowed", "none")]
        assert rows[1][1:] == ["0.910", "0.0100", "0.0100", rows[1][4], rows[1][5], "0.0800"]
        assert rows[2][1:4] == ["0.900", "0.0125", "0"] and rows[3][6] == "-0.0100"
        names = [line.name for line in losses.figure.data if line.mode != "markers"]
        assert [bar.name for bar in bars.figure.data] == names[:2]
        assert [bar.marker.color for bar in bars.figure.data] == [losses.figure.data[i].line.color for i in (0, 2)]


def test_a_target_or_a_loss_that_is_off_is_said() -> None:
    chosen = Smoothing(0.1, 10)
    asked, torchs = smoothing.look(chosen), smoothing.torchs_loss(chosen)
    assert not reds(smoothing.picture(asked, torchs, EN))
    lies = asked | {"allowed": replace(asked["allowed"], target=asked["allowed"].target * 1.01)}
    assert len(reds(smoothing.picture(lies, torchs, EN))) == 1
    assert len(reds(smoothing.picture(asked, torchs + 1e-3, EN))) == 1


# ---- gradient clipping


def clipped_steps() -> list[Any]:
    from tfviz.training.experiments.clipping import ClippedStep

    before = [np.array([3.0, 4.0]), np.array([0.3, 0.4])]
    return [ClippedStep(before[0], before[0] / 5, 1.0, 2.0), ClippedStep(before[1], before[1], 1.0, 2.0)]


def test_a_clipped_run_shows_its_norms_and_what_was_cut() -> None:
    drawn = clipping.picture(clipped_steps(), ["a", "b"], 1.0, 60, EN)
    curve, dots = drawn.panels
    assert curve.figure.data[0].y == pytest.approx([5, 0.5]) and curve.figure.data[1].y == pytest.approx([1, 0.5])
    assert dots.figure.data[1].y == pytest.approx([0.6, 0.8]) and "Step 1" in dots.title  # the longest
    assert not reds(drawn) and drawn.part == pytest.approx(2 / 60)
    assert drawn.badges[2].text == "1 of 2 steps were cut"


def test_a_gradient_that_is_too_long_or_turned_is_said() -> None:
    first, second = clipped_steps()
    long, short, turned = (replace(first, after=first.after * s) for s in (1.01, 0.99, 1))
    for steps, n in ((long, 1), (short, 1), (replace(turned, cosine=0.99), 1)):
        assert len(reds(clipping.picture([steps, second], ["a", "b"], 1.0, 2, EN))) == n
    whole = replace(second, after=second.after / 2)  # one that was short enough is to be left alone
    assert len(reds(clipping.picture([first, whole], ["a", "b"], 1.0, 2, EN))) == 1


def test_a_clipped_run_grows() -> None:
    grown = pictures(clipping.SECTION, max_norm=1.0)
    lengths = [len(one.panels[0].figure.data[0].y) for one in grown]  # type: ignore[union-attr]
    assert lengths == list(range(5, 61, 5)) and [one.part is None for one in grown] == [False] * 11 + [True]


# ---- dropout


def dropped() -> Any:
    from tfviz.training.experiments.dropout import drop

    return drop(0.3, 4)


def test_draws_stand_between_evaluation_and_their_mean() -> None:
    seen = dropped()
    rows, away = dropout.picture(seen, 0.3, 2, list("2025-03-05") + ["end"], 256, EN).panels
    z = rows.figure.data[0].z
    assert z == pytest.approx(np.vstack([seen.evaluation, seen.draws[:2], seen.draws.mean(axis=0)]), abs=1e-6)
    assert rows.figure.layout.yaxis.ticktext == ("evaluation", "draw 1", "draw 2", "mean of 128")
    assert away.figure.data[1].y.tolist() == seen.one_layer.tolist()


@pytest.mark.parametrize(
    "lie",
    [
        {"twice": 1e-9},
        {"kept": 1_000},
        {"one_layer": np.full(8, 0.5)},
        {"one_layer": 1.0 / 2.0 ** np.arange(8)},
    ],
)
def test_dropout_that_does_not_do_what_it_says_is_said(lie: dict[str, Any]) -> None:
    seen, answer = dropped(), ["?"] * 11
    assert not reds(dropout.picture(seen, 0.3, 2, answer, 256, EN))
    assert len(reds(dropout.picture(replace(seen, **lie), 0.3, 2, answer, 256, EN))) == 1
    assert len(reds(dropout.picture(seen, 0.4, 2, answer, 256, EN))) == 1  # another share than was asked for


# ---- weight tying


def test_the_paper_saves_two_matrices_of_three() -> None:
    bars, counts, uses = last(tying.SECTION).panels
    assert "37,888,000 parameters saved, 37.5 %, 145 MiB" in bars.title
    rows = {row[0]: row[1:] for row in cells(counts.html)[1:]}
    assert rows["embeddings"] == ["37,888,000", "18,944,000", "18,944,000"]
    assert rows["output layer"] == ["18,944,000", "0", "18,944,000"]
    assert rows["all"] == ["100,933,632", "63,045,632", "37,888,000"]
    totals = sum(bar.x for bar in bars.figure.data)
    assert totals.tolist() == [100_933_632, 63_045_632]
    assert [row[0] for row in cells(uses.html)[1:4]] == ["encoder embedding", "decoder embedding", "output layer"]


@pytest.mark.parametrize("lie", ["addresses", "output", "gradient"])
def test_a_matrix_that_is_not_the_same_is_said(lie: str) -> None:
    from tfviz.training.experiments.tying import count, share

    shared = share("dates")
    value = getattr(shared, lie)
    wrong = {**value, "output": 1} if lie == "addresses" else value + 1e-4
    assert not reds(tying.picture("dates", count("dates"), shared, EN))
    assert len(reds(tying.picture("dates", count("dates"), replace(shared, **{lie: wrong}), EN))) == 1


# ---- mixed precision


def test_a_scale_moves_the_gradients_and_their_fate() -> None:
    still, moved = (last(precision.SECTION, exponent=k) for k in (0, 16))
    shift = moved.panels[0].figure.data[0].x - still.panels[0].figure.data[0].x  # type: ignore[union-attr]
    assert shift == pytest.approx(16 * np.log10(2))
    lost = [float(cells(one.panels[1].html)[1][1].removesuffix(" %")) for one in (still, moved)]
    assert lost[0] > 30 > 5 > lost[1] and cells(moved.panels[1].html)[1][2] == "0"  # BF16 loses none


@pytest.mark.parametrize("lie", [{"zero": 7}, {"worst_error": 0.01}])
def test_a_cast_that_was_not_what_the_format_allows_is_said(lie: dict[str, Any]) -> None:
    from tfviz.training.experiments.precision import FORMATS, histogram, limits, look

    casts, bounds = {name: look("fresh", name) for name in FORMATS}, {name: limits(name) for name in precision.NAMES}
    assert not reds(precision.picture(histogram("fresh"), casts, bounds, 0, EN))
    wrong = casts | {"fp16": replace(casts["fp16"], **lie)}
    assert len(reds(precision.picture(histogram("fresh"), wrong, bounds, 0, EN))) == 1


# ---- gradient accumulation


def accumulated(tokens: list[int]) -> Any:
    from tfviz.training.experiments.accumulation import Accumulated

    whole = np.array([3.0, 4.0], dtype=np.float32)
    return Accumulated(whole, whole, whole * np.float32(1.1), np.array(tokens), 1024)


def test_the_difference_and_each_tokens_weight_are_shown() -> None:
    drawn = accumulation.picture({1: accumulated([6]), 2: accumulated([2, 4])}, 2, EN)
    lines, bars, table = drawn.panels
    assert bars.figure.data[0].y == pytest.approx([1.5, 0.75])
    assert lines.figure.data[1].y == pytest.approx([0.4, 0.4], rel=1e-5)
    assert cells(table.html)[1][1:] == ["0", "0"] and cells(table.html)[2][1:] == ["0.400", "0.100"]
    assert not reds(drawn) and drawn.part == pytest.approx(2 / 6)
    assert "10.0 %" in drawn.badges[1].text and "1.00 KiB" in drawn.badges[2].text


def test_a_sum_that_is_not_the_batch_is_said() -> None:
    one = accumulated([2, 4])
    wrong = replace(one, by_tokens=one.by_tokens * np.float32(1.001))
    assert len(reds(accumulation.picture({2: wrong}, 2, EN))) == 1
    assert len(reds(accumulation.picture({2: replace(one, tokens=np.array([3, 3]))}, 2, EN))) == 1  # equal, yet apart


def test_equal_lengths_agree_both_ways() -> None:
    assert [badge.ok for badge in last(accumulation.SECTION, even=True).badges] == [True, True, None]
    assert [badge.ok for badge in last(accumulation.SECTION, even=False).badges] == [True, None, None]
