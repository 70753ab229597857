"""Sections of a tab: a paragraph and its formula, a live picture with its badges, controls, things to try, the code.

A tab is a tuple of sections, shown as pills. A section's picture is drawn when somebody looks at it, and again when the
sentence, the shared selection or a control of it changes; assets/js/picture.js knows when. The newest wish wins.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.errors import WrongModel
from tfviz.ui.components.code import show_code
from tfviz.ui.components.controls import forgive
from tfviz.ui.components.picture import Picture, pack, payload, picture_view
from tfviz.ui.context import AppContext, quietly
from tfviz.ui.i18n import Translator
from tfviz.ui.selection import place

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.records import Record
    from tfviz.introspection.trace import Trace
    from tfviz.introspection.workbench import Workbench

LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
ASK_AGAIN = 0.5  # seconds after which a waiting measurement tells its place again


@dataclass(frozen=True)
class Scene:
    """What one drawing may use."""

    t: Translator
    bench: "Workbench"
    trace_id: str
    trace: "Trace | None"
    place: Mapping[str, Any]  # kind, layer, head, query, key; inside `trace`
    stop: Callable[[], bool] = lambda: False  # a newer wish for this picture is there

    def examine(self, job: Callable[..., Any], key: Any = None) -> Any:
        """`job(model, prompt)` of the traced sentence, run once for each trace (see Workbench.examine)."""
        found = self.bench.examine(self.trace_id, job, _name(job) if key is None else key, stop=self.stop)
        if found is None:
            raise gone()
        return found

    def stream(self, job: Callable[..., Iterator[Any]]) -> Iterator[Any]:
        """The steps of `job(model, prompt)`, each when the device is free; ends when a newer wish is there."""
        return self.bench.stream(self.trace_id, job, stop=self.stop)

    def compute(self, job: Callable[..., Any], *args: Any) -> Any:
        """`job(*args)` when the device is free (see Workbench.compute)."""
        return self.bench.compute(job, *args)

    def keep(self, key: Hashable, finding: Any, records: "Sequence[Record]" = ()) -> None:
        """Keeps what was measured on this machine, for drawing again and for export (see Results.put)."""
        self.bench.results.put(key, finding, records)

    def kept(self, key: Hashable) -> Any:
        return self.bench.results.get(key)


def gone() -> type[Exception]:
    """What is raised when the server no longer keeps the trace that a page shows; torch comes with its module."""
    from tfviz.introspection.workbench import Gone

    return Gone


def _name(job: Callable[..., Any]) -> Any:
    if isinstance(job, partial):
        return _name(job.func), job.args, tuple(sorted(job.keywords.items()))
    return job.__module__, job.__qualname__


@dataclass(frozen=True)
class Try:
    """A button that sets controls, moves the selection or types a sentence."""

    key: str
    values: Mapping[str, Any] = field(default_factory=dict)
    place: Mapping[str, int] = field(default_factory=dict)
    sentence: str = ""


def no_controls(t: Translator) -> dict[str, Any]:
    return {}


def no_code() -> Sequence[Callable[..., Any]]:
    return ()


@dataclass(frozen=True)
class Section:
    """Its sentences stand under `key`: .name (the pill), .title, .intro, perhaps .article, and .try.<key of a Try>."""

    key: str
    # (scene, **controls); a sentence: what it waits for; None: what is drawn already is right
    draw: Callable[..., Picture | Iterator[Picture | str] | None]
    formulas: Sequence[str] = ()
    controls: Callable[[Translator], dict[str, Any]] = no_controls
    selects: Sequence[str] = ()  # parts of the shared selection that its picture depends on and offers
    needs_trace: bool = True
    origin: bool = False  # of a sentence that a model went on with, its beginning is looked at, whatever is on show
    asks: bool = False  # a drawing of its own asks for things (api.ask): `draw` gets them as `ask`, unchecked
    button: str = ""  # the sentence on a button without which `draw` measures nothing: then it gets `measure`
    tries: Sequence[Try] = ()
    code: Callable[[], Sequence[Callable[..., Any]]] = no_code


def sections(ctx: AppContext, parts: Sequence[Section]) -> None:
    """Builds a tab of these sections."""
    if len(parts) == 1:
        return _build(ctx, parts[0])
    with gr.Tabs(elem_classes=["tv-pills"]):
        for part in parts:
            with gr.Tab(ctx.t(f"{part.key}.name"), id=part.key):
                _build(ctx, part)


def _build(ctx: AppContext, section: Section) -> None:
    t, key = ctx.t, section.key
    texts = [f"## {t(f'{key}.title')}", t(f"{key}.intro"), *(f"$${one}$$" for one in section.formulas)]
    if t.has(f"{key}.article"):
        texts.append(t(f"{key}.article"))
    gr.Markdown("\n\n".join(texts), latex_delimiters=LATEX, elem_classes=["tv-text"])
    props: dict[str, Any] = {"selects": list(section.selects), "needs_trace": section.needs_trace, "own": _id(key)}
    props["origin"] = section.origin
    props["button"] = t(section.button) if section.button else ""
    if section.controls is no_controls:
        view, controls = picture_view(t.language, _id(key), **props), {}
    else:
        with gr.Row(elem_classes=["tv-split"]):
            with gr.Column(scale=3, min_width=320):
                view = picture_view(t.language, _id(key), **props)
            with gr.Column(scale=1, min_width=240):
                controls = section.controls(t)
    for control in controls.values():
        forgive(control)
    _build_tries(ctx, section, controls)
    listen: dict[str, Any] = {"concurrency_limit": 8, "trigger_mode": "multiple"}  # picture.js decides what is asked
    view.wanted(_drawer(ctx, section, list(controls)), list(controls.values()), view, **listen, **quietly(ctx))
    for control in controls.values():
        control.change(None, js=f"() => window.tfviz.changed('{_id(key)}')", **quietly(ctx))


def _build_tries(ctx: AppContext, section: Section, controls: dict[str, Any]) -> None:
    t = ctx.t
    if not section.tries:
        return
    gr.HTML(f'<p class="tv-soft">{t("picture.try")}</p>', apply_default_css=False)
    with gr.Row(elem_classes=["tv-tries"]):
        for one in section.tries:
            button = gr.Button(t(f"{section.key}.try.{one.key}"), size="sm", elem_classes=["tv-chip"])
            if one.values:
                values = list(one.values.values())
                set_to = values[0] if len(values) == 1 else values
                button.click(
                    lambda set_to=set_to: set_to, None, [controls[name] for name in one.values], **quietly(ctx)
                )
            if one.place or one.sentence:
                wish = {"place": dict(one.place), "sentence": one.sentence}
                button.click(None, js=f"() => window.tfviz.tried({json.dumps(wish)})", **quietly(ctx))


def _drawer(ctx: AppContext, section: Section, names: Sequence[str]) -> Callable[..., Iterator[str]]:
    """The listener of one section's `wanted`: one value for each picture that its `draw` gives."""

    def wanted(event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[str]:
        wish = event._data if isinstance(event._data, dict) else {}
        overtaken = ctx.newest_wish(str(request.session_hash), section.key)
        reply: dict[str, Any] = {"key": wish.get("key"), "done": False}
        if wish.get("code") and section.code is not no_code:
            reply["code"] = show_code(ctx.t, *section.code())
        named = dict(zip(names, values, strict=True))
        if section.button:
            named["measure"] = wish.get("measure") is True
        if section.asks:
            named["ask"] = wish["ask"] if isinstance(wish.get("ask"), dict) else {}
        try:
            scene = _scene(ctx, section, wish, overtaken)
            drawn = section.draw(scene, **named)
            if drawn is None or isinstance(drawn, Picture):
                yield pack({**reply, **({} if drawn is None else payload(drawn)), "done": True})
                return
            for picture in _in_line(scene, drawn) if named.get("measure") else drawn:
                reply |= {"waiting": picture} if isinstance(picture, str) else {**payload(picture), "waiting": ""}
                last = isinstance(picture, Picture) and picture.last
                yield pack({**reply, "done": last})
                if last:
                    return
            yield pack({**reply, "done": True})  # all of it: the browser may have skipped a value that another followed
        except gone():
            yield pack({**reply, "gone": True, "done": True})
        except WrongModel as error:  # what is drawn is another model's
            yield pack({**reply, **payload(Picture([], notes=[ctx.sentence(error)])), "done": True})
        except Exception as error:  # in a sentence; the last picture stays
            if overtaken():
                return
            yield pack({**reply, "error": ctx.sentence(error), "done": True})

    return wanted


def _in_line(scene: Scene, drawn: Iterator[Picture | str]) -> Iterator[Picture | str]:
    """One measurement at a time: while others measure a sentence says how many are before this one."""
    with scene.bench.measuring.line() as ahead:
        while n := ahead(ASK_AGAIN):
            if scene.stop():
                return
            yield scene.t("picture.waiting", n=n)
        yield from drawn


def _scene(ctx: AppContext, section: Section, wish: Mapping[str, Any], stop: Callable[[], bool]) -> Scene:
    bench, trace_id = ctx.workbench, str(wish.get("trace") or "")
    trace = bench.find(trace_id)
    if trace is None and section.needs_trace:
        raise gone()
    asked = wish.get("place")
    where = {} if trace is None else place(asked if isinstance(asked, dict) else {}, trace)
    return Scene(ctx.t, bench, trace_id, trace, where, stop)


def _id(key: str) -> str:
    return key.replace(".", "-")
