"""The speed strip: measured rows, ratios to flash FP32, reasons, and text that stays text."""

import json
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from tfviz.inference.measure import Difference, Latency
from tfviz.introspection.workbench import Measurement
from tfviz.messages import LANGUAGES
from tfviz.ui.components.speed_strip import BASELINE, KERNELS, PRECISIONS, Setting, Strip, render
from tfviz.ui.i18n import Translator

EN = Translator("en")
INT8: Setting = ("flash", "int8")
NASTY = "</td><script>alert(1)</script>\"'&<b>"


def row(
    seconds: float = 0.084, kernel: str = "flash", precision: str = "fp32", top1: float | None = 1.0
) -> Measurement:
    took = Latency(seconds, 0.9 * seconds, 1.2 * seconds, 5)
    return Measurement(kernel, precision, took, 4 * 1024**2, 513 * 1024**2, Difference(3.1e-5, top1, 0.0))


class Table(HTMLParser):
    """Rows of cell texts, and every tag seen."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def strip(**rows: Measurement) -> Strip:
    """`strip(flash_fp32=row(), naive_fp32=row())`"""
    return Strip("id", ("m",), BASELINE, {tuple(name.split("_")): value for name, value in rows.items()})  # type: ignore[misc]


def ratios(shown: Strip) -> dict[str, str]:
    rows = Table(render(shown, EN)).rows[1:]
    return {cells[0]: cells[2] for cells in rows if len(cells) == 3}


def test_ratios_are_relative_to_flash_fp32_and_slower_is_shown_as_slower() -> None:
    shown = strip(naive_fp32=row(0.101), flash_fp32=row(0.084), flash_int8=row(0.042))
    assert ratios(shown) == {"flash · FP32": "1.00x", "naive · FP32": "0.83x", "flash · INT8": "2.00x"}


def test_without_flash_fp32_the_first_row_is_what_others_are_compared_to() -> None:
    shown = strip(naive_fp16=row(0.1), naive_int8=row(0.05))
    shown = replace(shown, current=("naive", "fp16"))
    assert ratios(shown) == {"naive · FP16": "1.00x", "naive · INT8": "2.00x"}


def test_a_setting_not_measured_yet_is_a_row_without_numbers() -> None:
    html = render(Strip(current=INT8), EN)
    assert Table(html).rows[1:] == [["flash · INT8", "…", "…"]]
    assert 'aria-current="true"' in html


def test_only_the_current_setting_is_marked() -> None:
    html = render(replace(strip(flash_fp32=row(), flash_int8=row()), current=INT8), EN)
    assert len(re.findall('aria-current="true"', html)) == 1
    assert re.search('aria-current="true"><th scope="row">flash · INT8', html)


def test_settings_stand_in_one_order_however_they_were_measured() -> None:
    settings = [(kernel, precision) for precision in PRECISIONS for kernel in KERNELS]
    there, back = Strip(), Strip()
    for setting in settings:
        there = there.with_row(setting, row())
    for setting in reversed(settings):
        back = back.with_row(setting, row())
    assert render(there, EN) == render(back, EN)
    assert len(ratios(there)) == len(settings) == 12


def test_a_row_says_what_it_costs_in_bytes_and_how_far_it_is_off() -> None:
    (_, measured, detail) = Table(render(strip(flash_fp32=row(top1=0.975)), EN)).rows
    assert measured == ["flash · FP32", "84.0 ms", "1.00x"]
    for part in ("513 MiB", "4.00 MiB", "3.10e-5", "97.5 %"):
        assert part in detail[0]


def test_agreement_of_top_tokens_is_left_out_where_there_is_no_head() -> None:
    assert "top token" not in render(strip(flash_fp32=row(top1=None)), EN)


def test_the_spread_of_the_runs_is_in_the_tooltip() -> None:
    html = render(strip(flash_fp32=row(0.1)), EN)
    assert "median of 5 warm runs; quartiles 90.0 ms to 120 ms" in html


def test_a_reason_is_shown_for_a_setting_that_cannot_run() -> None:
    shown = strip(flash_fp32=row()).with_reason(INT8, "no integer product here")
    rows = Table(render(shown, EN)).rows[1:]
    assert rows[-2:] == [["flash · INT8", "…", "…"], ["no integer product here"]]


def test_what_the_switches_lack_stands_in_the_table_for_the_page_to_grey() -> None:
    lacks = {"tv-kernel": {}, "tv-precision": {"int4": NASTY}}
    held = re.search(r'data-lacks="([^"]*)"', render(Strip(lacks=lacks), EN))
    assert held is not None and json.loads(unescape(held[1])) == lacks
    assert "data-lacks" not in render(Strip(lacks={"tv-kernel": {}}), EN)


def test_text_from_elsewhere_stays_text() -> None:
    table = Table(render(Strip().with_reason(INT8, NASTY), EN, doing=NASTY))
    assert "script" not in table.tags and "b" not in table.tags
    assert [NASTY] in table.rows


def test_what_is_being_measured_is_announced() -> None:
    assert 'role="status">Measuring …</p>' in render(Strip(), EN, "Measuring …")
    assert "role" not in render(Strip(), EN)


def test_an_output_that_overflowed_is_shown_and_breaks_nothing() -> None:
    overflowed = replace(row(), difference=Difference(math.inf, 0.0, math.nan))
    assert Table(render(strip(flash_fp16=overflowed), EN)).rows


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_is_whole_in_each_language(language: str) -> None:
    shown = strip(flash_fp32=row(), naive_int8=row()).with_reason(("flash", "bf16"), "why")
    table = Table(render(shown, Translator(language), "…"))
    assert not table.open and "{" not in render(shown, Translator(language))
    assert table.tags.count("table") == 1 and "caption" in table.tags


def test_adding_to_a_strip_leaves_it_as_it_was() -> None:
    first = Strip("id", ("m",), INT8)
    second = first.with_row(INT8, row()).with_reason(BASELINE, "why")
    assert first.rows == {} and first.reasons == {}
    assert (second.trace_id, second.about, second.current) == ("id", ("m",), INT8)
    assert second.rows.keys() == {INT8} and second.reasons == {BASELINE: "why"}


def test_every_precision_of_the_table_has_its_label_and_any_other_setting_a_row() -> None:
    from tfviz.inference.precision import PRECISIONS as RECIPES

    assert {key: recipe.label for key, recipe in RECIPES.items()} == PRECISIONS
    strange: Setting = ("flash", "int2")
    assert Table(render(Strip(current=strange), EN)).rows[1:] == [["flash · INT2", "…", "…"]]
