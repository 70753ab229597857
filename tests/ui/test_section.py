"""Sections: one wish gives one picture, the newest wish wins, and what is wrong becomes a sentence."""

import json
from collections.abc import Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any

import gradio as gr
import numpy as np
import plotly.graph_objects as go
import pytest

from tfviz.config import Settings
from tfviz.errors import UnsupportedHere, WrongModel
from tfviz.inference.device import DeviceGate
from tfviz.ui.components.controls import forgive
from tfviz.ui.components.picture import Badge, Panel, Picture, payload, table
from tfviz.ui.components.section import Scene, Section, _drawer
from tfviz.ui.context import AppContext
from tfviz.ui.i18n import Translator


class Bench:
    def __init__(self) -> None:
        self.measuring = DeviceGate()

    def find(self, trace_id: str) -> None:
        return None


class Context(AppContext):
    bench = Bench()

    @property
    def workbench(self) -> Any:
        return self.bench


@pytest.fixture
def ctx() -> AppContext:
    made = Context(Translator("en"), Settings.from_environment())
    made.bench = Bench()
    return made


def ask(ctx: AppContext, section: Section, *values: Any, session: str = "me", **wish: Any) -> list[dict[str, Any]]:
    return [json.loads(value) for value in begin(ctx, section, *values, session=session, **wish)]


def begin(ctx: AppContext, section: Section, *values: Any, session: str = "me", **wish: Any) -> Iterator[str]:
    drawer = _drawer(ctx, section, ["n"][: len(values)])
    return drawer(SimpleNamespace(_data=wish), SimpleNamespace(session_hash=session), *values)  # type: ignore[arg-type]


def plain(scene: Scene, n: int = 0) -> Picture:
    return Picture([Panel(html=str(n))], [Badge(True, "even")])


def test_a_picture_comes_with_the_key_of_its_wish(ctx: AppContext) -> None:
    (value,) = ask(ctx, Section("x", plain, needs_trace=False), 7, key="k")
    assert (value["key"], value["done"], value["panels"][0]["html"]) == ("k", True, "7")
    assert value["badges"] == [{"ok": True, "text": "even", "title": ""}]


def test_a_measurement_grows_and_ends_with_all_of_it(ctx: AppContext) -> None:
    def grows(scene: Scene) -> Iterator[Picture]:
        for i in (1, 2):
            yield Picture([Panel(html=str(i))], part=i / 2)

    values = ask(ctx, Section("x", grows, needs_trace=False), key="k")
    assert [(value["part"], value["done"]) for value in values] == [(0.5, False), (1.0, False), (1.0, True)]
    assert values[-1]["panels"][0]["html"] == "2"


def test_only_a_pressed_button_measures(ctx: AppContext) -> None:
    def draw(scene: Scene, measure: bool) -> Picture:
        return Picture([Panel(html=str(measure))])

    section = Section("x", draw, needs_trace=False, button="code.copy")
    assert [ask(ctx, section, key="k", measure=m)[0]["panels"][0]["html"] for m in (True, False, None)] == [
        "True",
        "False",
        "False",
    ]


def grown(scene: Scene, measure: bool) -> Iterator[Picture]:
    for i in range(1, 3 if measure else 1):
        yield Picture([Panel(html=str(i))], part=i / 2)
    yield Picture([Panel(html="all")])


def test_one_measurement_at_a_time_and_the_next_hears_its_place(ctx: AppContext) -> None:
    section = Section("x", grown, needs_trace=False, button="code.copy")
    first = begin(ctx, section, key="k", measure=True)
    assert json.loads(next(first))["part"] == 0.5
    second = begin(ctx, section, key="k", measure=True, session="you")
    assert json.loads(next(second)) == {"key": "k", "done": False, "waiting": "Waiting: 1 before this measurement"}
    assert ask(ctx, section, key="k", session="she")[-1]["done"]  # who only looks does not wait
    assert [json.loads(value)["done"] for value in first] == [False, False, True]
    rest = [json.loads(value) for value in second]
    assert [(value["part"], value["waiting"]) for value in rest] == [(0.5, ""), (1.0, ""), (None, ""), (None, "")]


def test_a_measurement_that_is_given_up_leaves_the_line(ctx: AppContext) -> None:
    drawer = _drawer(ctx, Section("x", grown, needs_trace=False, button="code.copy"), [])

    def wish(session: str, measure: bool) -> Iterator[str]:
        return drawer(SimpleNamespace(_data={"measure": measure}), SimpleNamespace(session_hash=session))  # type: ignore[arg-type]

    first, second = wish("me", True), wish("you", True)
    next(first), next(second)
    assert json.loads([*wish("you", False)][-1])["done"]
    assert [json.loads(value).get("panels") for value in second] == [None]  # its end: nothing was measured
    first.close()  # the page was closed
    assert json.loads(next(wish("she", True)))["part"] == 0.5


def test_a_newer_wish_of_the_same_page_stops_a_measurement(ctx: AppContext) -> None:
    def forever(scene: Scene) -> Iterator[Picture]:
        while not scene.stop():
            yield Picture([])

    section = Section("x", forever, needs_trace=False)
    drawer = _drawer(ctx, section, [])

    def start(session: str) -> Iterator[dict[str, Any]]:
        yield from map(
            json.loads, drawer(SimpleNamespace(_data={"key": session}), SimpleNamespace(session_hash=session))
        )  # type: ignore[arg-type]

    first = start("me")
    next(first)
    other = start("somebody else")
    next(other)
    next(first)
    second = start("me")
    next(second)
    assert [value["done"] for value in first] == [True] and next(other)["done"] is False


def test_a_mistake_is_a_sentence_and_any_other_error_an_apology(ctx: AppContext) -> None:
    def refuse(scene: Scene) -> Picture:
        raise UnsupportedHere("error.flash_softcap")

    def fail(scene: Scene) -> Picture:
        raise RuntimeError("secret")

    said = ask(ctx, Section("x", refuse, needs_trace=False), key="k")[0]
    assert said["error"] == ctx.t("error.flash_softcap") and "panels" not in said and said["done"]
    assert "secret" not in ask(ctx, Section("x", fail, needs_trace=False), key="k")[0]["error"]


def test_a_trace_that_is_gone_is_asked_for_again(ctx: AppContext) -> None:
    (value,) = ask(ctx, Section("x", plain), key="k", trace="old")
    assert value["gone"] and value["done"]


@pytest.mark.parametrize("wish", [{}, {"place": 3, "trace": None}, {"trace": {"a": 1}, "key": [1]}])
def test_a_wish_of_any_form_is_answered(ctx: AppContext, wish: dict[str, Any]) -> None:
    assert ask(ctx, Section("x", plain, needs_trace=False), **wish)[-1]["done"]


def test_a_figure_travels_as_typed_arrays() -> None:
    figure = go.Figure(go.Scatter(y=np.arange(4, dtype=np.float32)))
    sent = payload(Picture([Panel(figure, "Line", select={"x": "key"})]))["panels"][0]
    assert json.loads(sent["figure"])["data"][0]["y"]["dtype"] == "f4" and sent["select"] == {"x": "key"}


def test_a_table_shows_markup_as_text() -> None:
    html = table("<i>", ["<b>"], [("<script>", ["&"])])
    assert "<script>" not in html and "&lt;b&gt;" in html and "<td>&amp;</td>" in html


def test_what_a_drawing_asks_for_reaches_it_and_nothing_else_does(ctx: AppContext) -> None:
    def draw(scene: Scene, ask: Any) -> Picture:
        return Picture([Panel(html=str(ask))])

    section = Section("x", draw, needs_trace=False, asks=True)
    said = [ask(ctx, section, key="k", ask=wish)[0]["panels"][0]["html"] for wish in ({"path": [1]}, None, "path", [1])]
    assert said == ["{'path': [1]}", "{}", "{}", "{}"]


def test_nothing_new_to_draw_leaves_the_picture(ctx: AppContext) -> None:
    (value,) = ask(ctx, Section("x", lambda scene: None, needs_trace=False), key="k")
    assert value == {"key": "k", "done": True}


def test_what_a_model_does_not_have_takes_the_place_of_another_models_picture(ctx: AppContext) -> None:
    def draw(scene: Scene) -> Picture:
        raise WrongModel("error.no_generation", model="MiniLM")

    (value,) = ask(ctx, Section("x", draw, needs_trace=False), key="k")
    assert value["panels"] == [] and "error" not in value and value["notes"][0].startswith("MiniLM writes no text")


def test_half_a_surrogate_pair_does_not_keep_an_answer_from_being_sent(ctx: AppContext) -> None:
    def draw(scene: Scene) -> Picture:
        return Picture([], notes=["a \ud800 b 🙂"])

    (value,) = begin(ctx, Section("x", draw, needs_trace=False), key="k")
    assert json.loads(value.encode())["notes"] == ["a \ufffd b 🙂"]


SENT: list[Any] = [None, {}, {"a": 1}, [["a"]], float("nan"), "x" * 9, 10**400, -1e300, "\ud800"]
CONTROLS: list[tuple[Any, Any]] = [
    (gr.Slider(1, 9, value=4), 4),
    (gr.Number(0.5), 0.5),
    (gr.Checkbox(True), True),
    (gr.Radio(["a", "b"], value="b"), "b"),
    (gr.Dropdown([("A", 1), ("B", 2)], value=2), 2),
    (gr.CheckboxGroup(["a", "b"], value=["a"]), ["a"]),
    (gr.Textbox("text", max_length=5), "text"),
]


@pytest.mark.parametrize("control, first", CONTROLS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    "sent", [None, {}, {"a": 1}, [["a"]], float("nan"), "x" * 9, 10**400, -1e300, "\ud800"], ids=range(9)
)
def test_any_value_is_taken_as_a_possible_one(control: Any, first: Any, sent: Any) -> None:
    """Anybody can send anything: none of it is refused, and what has no nearest value counts as the first one."""
    taken = forgive(copy(control)).preprocess(sent)
    if isinstance(control, gr.Slider) and sent in (10**400, -1e300):
        assert taken == (9 if sent > 0 else 1)
    elif isinstance(control, gr.Number) and sent == -1e300:
        assert taken == sent
    elif isinstance(control, gr.Textbox) and isinstance(sent, str):
        assert taken == sent[:5]
    elif isinstance(control, gr.CheckboxGroup) and isinstance(sent, list):
        assert taken == []
    else:
        assert taken == first
