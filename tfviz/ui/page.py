"""One page in one language: the sentence and the switches on the left, the tabs on the right, and what happens between.

Typing runs a trace; the newest text wins and no stale run waits in a queue. When the picture is up, the current setting
is measured in the background and gives way as soon as somebody needs the device.
"""

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.messages import LANGUAGES
from tfviz.ui.components.controls import forgive
from tfviz.ui.components.speed_strip import KERNELS, PRECISIONS, Setting, Strip, precision_label, render
from tfviz.ui.context import KEPT_SESSIONS, AppContext, Step, follow, quietly
from tfviz.ui.examples import carried_over, examples, most_examples
from tfviz.ui.i18n import Translator, megabytes, milliseconds, significant
from tfviz.ui.selection import FIRST
from tfviz.ui.tabs import TABS

if TYPE_CHECKING:
    from tfviz.introspection.trace import Trace
    from tfviz.sources.catalog import CatalogEntry

KEPT_TRACES = 64  # names of one page's traces, to give them back with it
RUN = "run "  # begins the name of a run, which a trace's id does not
PATHS = {"en": "/", "zh": "/zh"}


class Page:
    """Widgets and wiring of one language's page; built inside the Blocks it belongs to."""

    def __init__(self, ctx: AppContext) -> None:
        self.ctx, self.t = ctx, ctx.t
        self.newest: OrderedDict[str, str] = OrderedDict()  # session -> its newest run, then that run's trace
        self.asked: dict[str, Any] = {}  # session -> what its newest run was asked for, until it fails
        self.traced: dict[str, list[str]] = {}  # session -> its traces
        self._build()
        self._wire()

    # -- widgets ----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        t, ctx = self.t, self.ctx
        ctx.selection = gr.State(FIRST)
        self.strip = gr.State(Strip())
        with gr.Column(elem_id="tv-page", elem_classes=["tv-page"]):
            self.header = gr.HTML(self._header(""), apply_default_css=False, elem_id="tv-header")
            with gr.Row(elem_id="tv-main"):
                with gr.Column(elem_id="tv-side", scale=0, min_width=272):
                    self._build_side()
                with gr.Column(elem_id="tv-view", scale=1, min_width=320):
                    ctx.notice = self.notice = gr.HTML("", apply_default_css=False, elem_id="tv-notice")
                    with gr.Tabs(elem_id="tv-tabs"):
                        for tab in TABS:
                            with gr.Tab(t(tab.title), id=tab.key):
                                tab.build(ctx)

    def _build_side(self) -> None:
        t, settings = self.t, self.ctx.settings
        self.first = gr.Textbox(
            examples(settings.model)[0], label=t("page.sentence"), lines=3, max_lines=6, elem_id="tv-first",
            max_length=20_000,
        )  # fmt: skip
        self.fold = gr.Button(t("page.switches"), elem_id="tv-fold")
        with gr.Column(elem_id="tv-more"):
            self.second = gr.Textbox(
                label=t("page.second"), lines=2, max_lines=4, elem_id="tv-second", visible=False, max_length=20_000
            )
            with gr.Row(elem_id="tv-chips"):
                self.chips = [gr.Button(**chip, size="sm", elem_classes=["tv-chip"]) for chip in _chips(settings.model)]
            self.model = gr.Dropdown(
                _model_choices(t), value=settings.model, label=t("page.model"), info=t("page.model.info"),
                allow_custom_value=True, elem_id="tv-model",
            )  # fmt: skip
            self.kernel = gr.Radio(list(KERNELS), value="flash", label=t("page.kernel"), elem_id="tv-kernel")
            choices = [(label, key) for key, label in PRECISIONS.items()]
            self.precision = gr.Radio(
                choices, value="fp32", label=t("page.precision"), info=t("page.precision.info"), elem_id="tv-precision"
            )
            self.speed = gr.HTML(render(Strip(), t), apply_default_css=False, elem_id="tv-speed")
            self.run_all = gr.Button(t("speed.run_all"), size="sm", elem_id="tv-run-all")
        for control in (self.first, self.second, self.model, self.kernel, self.precision):
            forgive(control)

    def _header(self, device: str) -> str:
        """Title, device, language switch, light and dark. The links carry the state along (see page.js)."""
        links = "".join(
            f'<a href="{PATHS[code]}" hreflang="{code}" lang="{code}"'
            f"{' aria-current=page' if code == self.t.language else ''}>{'EN' if code == 'en' else name}</a>"
            for code, name in LANGUAGES.items()
        )
        return (
            f'<header class="tv-header"><h1>tfviz</h1><p>{escape(self.t("page.tagline"))}</p><div class="tv-right">'
            f'<span class="tv-device">{escape(device)}</span>'
            f'<nav class="tv-seg" aria-label="{escape(self.t("page.language"))}">{links}</nav>'
            f'<button type="button" class="tv-mode" aria-label="{escape(self.t("page.mode"))}" '
            f'title="{escape(self.t("page.mode"))}"></button></div></header>'
        )

    # -- wiring -----------------------------------------------------------------------------------------------------

    def _wire(self) -> None:
        inputs = [self.first, self.second, self.model, self.kernel, self.precision, self.ctx.selection, self.strip]
        measured = [self.speed, self.strip, self.fold]
        shown = [component for component, _ in self.ctx.outputs]
        asked = [self.first, self.second, *self.chips]
        self.outputs = [self.notice, self.header, self.fold, self.speed, self.strip, *asked, *shown]
        quiet = quietly(self.ctx)

        start = gr.context.Context.root_block.load(  # type: ignore[union-attr]
            self.open_page, None, [self.first, self.second, self.model, self.kernel, self.precision], **quiet
        )
        start.then(None, js="() => window.tfviz.opened()", **quiet)
        everything = self.run_all.click(self.measure_all, [self.strip], measured, concurrency_limit=8, **quiet)
        run: dict[str, Any] = quiet | {
            "fn": self.trace,
            "inputs": inputs,
            "outputs": self.outputs,
            "concurrency_limit": 8,
            "cancels": [everything],
            "js": "(...inputs) => { window.tfviz.traceStarts(inputs); return inputs }",
        }
        # A Textbox's `input` hears key presses only, not pasting, deleting or an input method; `change` hears all.
        changes = [self.first.change, self.second.change, self.model.input, self.kernel.input, self.precision.input]
        typed = gr.on(changes, trigger_mode="always_last", **run)
        for traced in (typed, start.then(**run), self.ctx.attention_view.gone(**run)):
            traced.then(None, js="() => window.tfviz.traceEnds()", **quiet)
            traced.then(
                self.measure_current, [self.strip], measured, trigger_mode="always_last", concurrency_limit=8, **quiet
            )  # fmt: skip
        gr.context.Context.root_block.unload(self.close_page)  # type: ignore[union-attr]
        for chip in self.chips:
            chip.click(None, js="() => window.tfviz.chip(event)", **quiet)
        self.ctx.attention_view.select(self.remember, self.ctx.selection, self.ctx.selection, **quiet)
        self.fold.click(None, js="() => window.tfviz.fold()", **quiet)

    # -- what happens -----------------------------------------------------------------------------------------------

    def open_page(self, request: gr.Request) -> list[Any]:
        """A link's state: ?text=...&second=...&model=...&kernel=...&precision=...; whatever it lacks stays as built.

        A model without a text opens with its own first example.
        """
        query = dict(request.query_params)
        kernel, precision = query.get("kernel"), query.get("precision")
        model = query.get("model", "").strip()[:1024]  # an empty one is none
        return [
            query["text"][:20_000] if "text" in query else examples(model)[0] if model else gr.skip(),
            query["second"][:20_000] if "second" in query else gr.skip(),
            model or gr.skip(),
            kernel if kernel in KERNELS else gr.skip(),
            precision if precision in PRECISIONS else gr.skip(),
        ]

    def close_page(self, request: gr.Request) -> None:
        """What a closed page had asked for is dropped when its turn comes."""
        session = str(request.session_hash)
        self.newest.pop(session, None)
        self.asked.pop(session, None)

    def forget(self, session: str) -> None:
        """Gives back all that was kept for a page that does not come back."""
        for kept in (self.newest, self.asked, self.ctx.wishes):
            kept.pop(session, None)
        for trace_id in self.traced.pop(session, []):
            self.ctx.workbench.forget(trace_id)

    def remember(self, event: gr.EventData, selection: dict[str, Any]) -> dict[str, Any]:
        """The view's selection, for the next trace to open at."""
        chosen = event._data if isinstance(event._data, dict) else {}
        return {**selection, **{name: chosen[name] for name in FIRST if name in chosen}}

    def trace(
        self,
        first: str,
        second: str,
        model: str,
        kernel: str,
        precision: str,
        selection: dict[str, Any],
        strip: Strip,
        request: gr.Request,
    ) -> Iterator[list[Any]]:
        """Runs the sentence; yields status lines while a model is fetched or others are served, then every picture."""
        t, run, session = self.t, RUN + secrets.token_hex(8), str(request.session_hash)
        nothing = [gr.skip()] * len(self.outputs)  # a generator that yields not even this clears its outputs
        model = (model or "").strip()
        text = carried_over(first or "", str(strip.about[0]) if strip.about else model, model)
        swapped = text != (first or "")  # then what stands in the second box belongs to the old example
        wanted = (text, "" if swapped else (second or "").strip() and second, model, kernel, precision)
        newest = self.newest.get(session, "")
        comes = newest.startswith(RUN) or self.ctx.workbench.find(newest) is not None
        if self.asked.get(session) == wanted and comes:
            yield nothing  # a page that opens with a link's text hears of it twice
            return
        self._set_newest(request, run)
        self.asked[session] = wanted

        def fetching(done: int, total: int) -> Step:
            doing = t("page.fetching", model=model, done=megabytes(done), total=megabytes(total))
            return Step(doing, done / max(total, 1))

        def job(report: Any) -> Any:
            report(Step(t("page.loading", model=model)))
            from tfviz.introspection.workbench import Request  # brings torch, the first time

            bench, asked = self.ctx.workbench, Request(*wanted)
            loaded = bench.resident.get(
                asked.model,
                asked.precision,
                progress=lambda done, total: report(fetching(done, total)),
                stop=lambda: not self._asks_for(session, model),
            )
            report(Step(t("page.running", model=loaded.label)))
            # A decoder's box is hidden; what stands in it as half of a pair is no target, nor the other way round.
            other_box = loaded.family == "decoder" or strip.family not in {"", "decoder", loaded.family}
            return bench.trace(
                replace(asked, second=None) if other_box else asked,
                overview=True,
                limit=self.ctx.settings.max_tokens,
                waiting=lambda n: report(Step(t("page.waiting", n=n))) if n else None,
                stop=lambda: not self._is_newest(request, run),
            )

        for step in follow(job):
            if not self._is_newest(request, run):  # overtaken: a later run of this visitor will paint
                yield nothing
                return
            if step.error is not None:
                self.asked.pop(session, None)
                self._set_newest(request, strip.trace_id)  # which is what still stands on the page
                sentence = escape(self.ctx.sentence(step.error))
                flash = getattr(step.error, "key", "") == "error.flash_softcap"
                if flash or not strip.lacks:
                    strip = replace(strip, lacks=_lacks(self.ctx.workbench.resident.device, flash, t))
                said = f'<p class="tv-note tv-error" role="alert">{sentence}</p>'
                yield [said, *nothing[1:3], render(strip, t), strip, *nothing[5:]]
            elif not step.done:
                yield [_progress(step), *nothing[1:]]
            else:
                trace_id, trace = step.result
                self._set_newest(request, trace_id)
                self.traced[session] = [*self.traced.get(session, []), trace_id][-KEPT_TRACES:]
                about, same_model = (trace.model, trace.revision, trace.text), strip.about[:1] == (trace.model,)
                rows, reasons = (strip.rows, strip.reasons) if strip.about == about else ({}, {})
                lacks = _lacks(self.ctx.workbench.resident.device, _softcapped(trace), t)
                known = self._label(trace), trace.family, lacks
                fresh = Strip(trace_id, about, (kernel, precision), rows, reasons, *known)
                emptied = swapped or strip.family not in {"", "decoder", trace.family}
                yield [
                    self._notices(trace),
                    gr.skip() if strip.trace_id else self._header(_device(t)),
                    self._in_short(fresh),
                    render(fresh, t, "" if fresh.current in rows else t("speed.measuring")),
                    fresh,
                    text if swapped else gr.skip(),
                    gr.skip() if same_model else self._second(trace, empty=emptied),
                    *(gr.skip() if same_model else gr.update(**chip) for chip in _chips(trace.model)),
                    *[show(trace_id, trace, selection) for _, show in self.ctx.outputs],
                ]

    def measure_current(self, strip: Strip, request: gr.Request) -> Iterator[list[Any]]:
        """Times the setting on screen, unless it was timed before; shows it in any case.

        It runs after every trace, also after one that another overtook, and so may have timed the strip of a trace
        whose picture reaches the page later, without the figure. The run after that trace then brings the figure.
        """
        yield [gr.skip()] * 3
        if not strip.trace_id:
            return
        done = strip
        if strip.current not in strip.rows and strip.current not in strip.reasons:
            while done == strip and self._is_newest(request, strip.trace_id):  # again after giving way to another
                if self.ctx.workbench.find(strip.trace_id) is None:
                    break
                done = self._measured(request, strip, strip.current, give_way=True)
        if self._is_newest(request, strip.trace_id):
            yield [render(done, self.t), done, self._in_short(done)]

    def measure_all(self, strip: Strip, request: gr.Request) -> Iterator[list[Any]]:
        """Every kernel with every precision, one after the other; what is done is shown as it comes."""
        if not strip.trace_id or self.ctx.workbench.find(strip.trace_id) is None:
            yield [render(strip, self.t, self.t("speed.gone")), gr.skip(), gr.skip()]
            return
        settings = [(kernel, precision) for precision in PRECISIONS for kernel in KERNELS]
        todo = [setting for setting in settings if setting not in strip.rows]
        for i, (kernel, precision) in enumerate(todo):
            name = f"{kernel} · {precision_label(precision)}"
            doing = self.t("speed.running", name=name, i=i + 1, n=len(todo))
            yield [render(strip, self.t, doing), gr.skip(), gr.skip()]
            strip = self._measured(request, strip, (kernel, precision), give_way=False)
            if not self._is_newest(request, strip.trace_id):
                return
            yield [render(strip, self.t), strip, self._in_short(strip)]
        if not todo:
            yield [gr.skip()] * 3

    def _measured(self, request: gr.Request, strip: Strip, setting: Setting, give_way: bool) -> Strip:
        def overtaken() -> bool:
            return not self._is_newest(request, strip.trace_id)

        try:
            row = self.ctx.workbench.measure(strip.trace_id, *setting, stop=overtaken, give_way=give_way)
        except Exception as error:  # one setting's failure is said in its row, and the others go on
            return strip.with_reason(setting, self.ctx.sentence(error))
        return strip if row is None else strip.with_row(setting, row)

    # -- small parts ------------------------------------------------------------------------------------------------

    def _set_newest(self, request: gr.Request, run: str) -> None:
        self.newest[str(request.session_hash)] = run
        self.newest.move_to_end(str(request.session_hash))
        while len(self.newest) > KEPT_SESSIONS:
            self.asked.pop(self.newest.popitem(last=False)[0], None)

    def _is_newest(self, request: gr.Request, run: str) -> bool:
        return self.newest.get(str(request.session_hash)) == run

    def _asks_for(self, session: str, model: str) -> bool:
        """Whether this page still waits for the model; for another text it does."""
        wanted = self.asked.get(session)
        return wanted is not None and wanted[2] == model

    def _notices(self, trace: "Trace") -> str:
        t, notes = self.t, []
        if trace.cut_from:
            n, model = len(trace.source_tokens), self._label(trace)
            notes.append(t("page.cut", total=trace.n_tokens_typed, n=n, model=model, start=trace.cut_from))
        if trace.n_target_typed > len(trace.target_tokens):
            notes.append(t("page.target_cut", total=trace.n_target_typed, n=len(trace.target_tokens)))
        if trace.other_layers:
            shown = max(stack.n_layers for stack in trace.stacks.values())
            layers = {"n": shown, "of": shown + trace.other_layers}
            notes.append(t("page.other_layers", model=self._label(trace), **layers))
        typed = sorted({token.text for token in trace.source_tokens if token.typed})
        if typed:
            notes.append(t("page.typed_special", tokens=" ".join(typed)))
        if all(token.special for token in trace.source_tokens):
            notes.append(t("page.only_special", tokens=" ".join(token.text for token in trace.source_tokens)))
        return _about(trace, t) + "".join(f'<p class="tv-note" role="status">{escape(note)}</p>' for note in notes)

    def _label(self, trace: "Trace") -> str:
        entry = _entry(trace)
        return self.t(f"model.{entry.id}") if entry is not None and entry.ours else trace.model_label

    def _in_short(self, strip: Strip) -> str:
        """The line that stands for the whole left column on a phone."""
        kernel, precision = strip.current
        row = strip.rows.get(strip.current)
        took = "" if row is None else f" · {milliseconds(row.latency.median)}"
        return f"{strip.model} · {kernel} · {precision_label(precision)}{took}"

    def _second(self, trace: "Trace", empty: bool) -> Any:
        key = "page.target" if trace.family == "encoder-decoder" else "page.second"
        entry = _entry(trace)
        label = self.t("page.target.random" if entry and entry.preset else key)
        update: dict[str, Any] = {"visible": trace.family != "decoder", "label": label}
        return gr.update(**update, value="") if empty else gr.update(**update)


def _softcapped(trace: "Trace") -> bool:
    """Whether a layer caps its scores softly, as in Gemma-2."""
    return any(layer.softcap is not None for stack in trace.stacks.values() for layer in stack.layers.values())


def _lacks(device: Any, no_flash: bool, t: Translator) -> dict[str, dict[str, str]]:
    """Options of the switches that this device (a precision) or this model (flash) cannot run, with why."""
    from tfviz.inference.precision import PRECISIONS as RECIPES

    reasons = {key: recipe.unsupported(device) for key, recipe in RECIPES.items()}
    precisions = {key: t(reason) for key, reason in reasons.items() if reason is not None}
    return {"tv-kernel": {"flash": t("error.flash_softcap")} if no_flash else {}, "tv-precision": precisions}


def _progress(step: Step) -> str:
    doing, bar = escape(step.doing), ""
    if step.part is not None:
        bar = f'<progress max="1" value="{step.part:.4f}" aria-label="{doing}"></progress>'
    return f'<div class="tv-note" role="status">{doing}{bar}</div>'


def _device(t: Translator) -> str:
    """CPU · 2 threads, or the accelerator's name."""
    from tfviz.inference.device import describe
    from tfviz.introspection.workbench import default_workbench

    device = describe(default_workbench().resident.device)
    return t("page.cpu", n=device.threads) if device.kind == "cpu" else device.name


def _entry(trace: "Trace") -> "CatalogEntry | None":
    from tfviz.sources.catalog import CATALOG

    return CATALOG.get(trace.model)


def _about(trace: "Trace", t: Translator) -> str:
    """What one has to know of a model of ours to read its pictures."""
    entry = _entry(trace)
    if entry is None or not entry.ours:
        return ""
    if entry.preset is not None:
        words = t("page.random") if trace.text[1] else f"{t('page.random')} {t('page.random.target')}"
        return f'<div class="tv-note"><p>{escape(words)}</p>{_parameters(entry.preset, t)}</div>'
    first, more = (escape(t(f"page.about.{entry.checkpoint}{part}")) for part in ("", ".more"))
    return f'<details class="tv-about"><summary>{first}</summary>{more}</details>'


def _chips(model: str) -> list[dict[str, Any]]:
    """What each example button shows; models with fewer examples leave the last ones hidden."""
    texts = examples(model)
    return [{"value": text, "visible": True} for text in texts] + [{"visible": False}] * (most_examples() - len(texts))


def _model_choices(t: Translator) -> list[tuple[str, str]]:
    from tfviz.sources.catalog import CATALOG

    def label(entry: "CatalogEntry") -> str:
        key = "page.model.choice.two" if entry.family == "encoder-decoder" else "page.model.choice"
        name = t(f"model.{entry.id}") if entry.ours else entry.label
        return t(key, label=name, layers=entry.n_layers, heads=entry.n_heads)

    return [(label(entry), entry.id) for entry in CATALOG.values()]


@cache
def _parameters(preset: str, t: Translator) -> str:
    """How many parameters a preset has and where they lie, as HTML."""
    from tfviz.config import PRESETS
    from tfviz.model.parameters import count_parts_of

    parts = count_parts_of(PRESETS[preset])
    total = sum(part.count for part in parts)
    items = "".join(
        f"<li><span>{escape(t(f'part.{part.name}'))}</span> <b>{part.count:,}</b> "
        f"<i>{significant(100 * part.count / total)} %</i></li>"
        for part in parts
    )
    return f'<ul class="tv-parts"><li><b>{escape(t("page.parameters", n=total))}</b></li>{items}</ul>'
