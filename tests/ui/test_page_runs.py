"""The page's runs: traces of one visitor that overlap, and the measurements that follow them."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from starlette.datastructures import QueryParams

from tfviz.inference.measure import Difference, Latency
from tfviz.introspection.workbench import Measurement
from tfviz.ui.components.speed_strip import BASELINE, Strip, render
from tfviz.ui.i18n import Translator
from tfviz.ui.page import RUN, Page

EN = Translator("en")


def test_the_run_after_a_trace_shows_the_figure_even_if_another_run_has_timed_it() -> None:
    """Two traces of one text may overlap; the picture of one may reach the page after the figure of the other."""
    page: Any = object.__new__(Page)
    request: Any = SimpleNamespace(session_hash="one")
    page.t, page.newest = EN, OrderedDict(one="trace")
    figure = Measurement("flash", "fp32", Latency(0.002, 0.001, 0.003, 5), 1, 2, Difference(0.0, None, None))
    timed = Strip("trace", ("dates",), model="Dates").with_row(BASELINE, figure)
    *_, (speed, strip, line) = page.measure_current(timed, request)
    assert speed == render(timed, EN) and strip == timed and line.endswith("2.00 ms")
    page.newest["one"] = "later"
    assert len(list(page.measure_current(timed, request))) == 1


def test_a_text_whose_run_is_under_way_is_not_run_twice() -> None:
    page: Any = object.__new__(Page)
    request: Any = SimpleNamespace(session_hash="one")
    page.t, page.outputs = EN, [None]
    page.ctx = SimpleNamespace(workbench=SimpleNamespace(find=lambda trace_id: None))
    page.newest, page.asked = OrderedDict(one=f"{RUN}1"), {"one": ("a b", "", "dates", "flash", "fp32")}
    assert len(list(page.trace("a b", "", "dates", "flash", "fp32", {}, Strip(), request))) == 1
    assert page.newest["one"] == f"{RUN}1"


@pytest.mark.parametrize(
    "query, text, model",
    [
        ("text=5%2B5%20%3D%20C%2B%2B", "5+5 = C++", None),
        ("text=100%&model=", "100%", None),
        ("text=a+b&model=%20", "a b", None),  # as links were written before
        ("text=%FF%FE&kernel=flash&kernel=naive&model=minilm-l6", "\ufffd\ufffd", "minilm-l6"),
    ],
)
def test_a_link_is_read_as_it_was_meant(query: str, text: str, model: str | None) -> None:
    page: Any = object.__new__(Page)
    request: Any = SimpleNamespace(query_params=QueryParams(query))
    shown = page.open_page(request)
    assert shown[0] == text and (shown[2] == model if model else shown[2] == gr.skip())


def test_a_page_that_is_gone_gives_its_traces_and_wishes_back() -> None:
    page: Any = object.__new__(Page)
    given_back: list[str] = []
    wishes = OrderedDict(gone={"layers.map": object()}, stays={"layers.map": object()})
    page.ctx = SimpleNamespace(workbench=SimpleNamespace(forget=given_back.append), wishes=wishes)
    page.newest, page.asked = OrderedDict(gone="2", stays="3"), {"gone": (), "stays": ()}
    page.traced = {"gone": ["1", "2"], "stays": ["3"]}
    page.forget("gone")
    page.forget("unheard of")
    assert given_back == ["1", "2"]
    assert all(list(kept) == ["stays"] for kept in (page.newest, page.asked, page.traced, wishes))
