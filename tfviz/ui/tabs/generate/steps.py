"""Generate, steps: the prompt goes on token by token; what was likely, what settings made of it, and what was read.

    p_i = softmax(z)_i,   surprise = -ln p,   H = -sum_i p_i ln p_i,   all over the whole vocabulary

assets/js/views/decode.js keeps every step that was sent: looking back over a finished run asks the server nothing.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.errors import TfvizError
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, milliseconds, significant
from tfviz.ui.live import Live, live, run_id
from tfviz.ui.tabs.generate.words import said, words

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.run import Plan, TokenStep
    from tfviz.sources.base import LoadedModel, Prompt
    from tfviz.sources.tokens import Token

MOST = 128  # new tokens that the control offers
LONGEST = 256  # and that a run may have, with all that was asked for after it
MORE = 16
HEADS = 8  # of a run, whose rows are kept
CODES = 24_000  # weights that travel as 16-bit codes; more go as 8-bit ones
LIGHT, WHOLE = 6_000, 120_000  # that travel while a run grows, and at its end; beyond, only those of the new tokens
SUM, SAME = rounding.layers(), rounding.once()  # of distributions and rows; of one probability computed twice
FORMULAS = (r"p_i = \frac{\exp z_i}{\sum_j \exp z_j}, \qquad \text{surprise} = -\ln p, \qquad H = -\sum_i p_i \ln p_i",)
STAGES = ("model", "repetition", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Reading:
    """What the chosen head read: `rows[i]` belongs to the i-th token that went through the decoder."""

    kind: str
    layer: int
    head: int
    rows: Sequence[np.ndarray]  # each (columns it could have, NaN where it may not look)


@dataclass(frozen=True)
class Shown:
    """All that one picture shows of a run."""

    id: str
    trace_id: str
    plan: "Plan"
    made: str  # the controls that it was asked for with
    prompt: "Sequence[Token]"  # what the decoder read before the first step
    source: "Sequence[Token]"  # what the encoder read; empty for a decoder
    steps: "Sequence[TokenStep]"
    reading: Reading | None
    why_unread: str = ""  # a sentence, where there is no reading
    ended: bool = True
    halted: bool = False
    chat: bool = True  # the model has a chat template


def picture(shown: Shown, t: Translator, notes: Sequence[str] = ()) -> Picture:
    """While a run grows: all of its tokens and the newest step. When it has ended: everything."""
    first = 0 if shown.ended else len(shown.steps) - 1
    data = {
        "id": shown.id,
        "trace": shown.trace_id,
        "plan": as_values(shown.plan),
        "made": shown.made,
        "source": [_label(token) for token in shown.source],
        "prompt": [_label(token) for token in shown.prompt],
        "steps": _steps(shown.steps),
        "stages": [{"key": key, **words_of} for key, words_of in stages(shown.plan, t).items()],
        "details": {str(step.index): _details(step) for step in shown.steps[first:]},
        "read": _read(shown),
        "unread": shown.why_unread,
        "going": not shown.ended,
        "of": shown.plan.max_new_tokens,
        "more": min(MORE, LONGEST - len(shown.steps)) if _goes_on(shown) else 0,
        "chat": shown.chat,
        "said": said(shown.steps, shown.plan.max_new_tokens, shown.ended, shown.halted, t),
        "words": words(t),
    }
    part = None if shown.ended else len(shown.steps) / max(1, shown.plan.max_new_tokens)
    return Picture([Panel(view="decode", data=data, wide=True)], badges(shown, t), notes, part)


def stages(plan: "Plan", t: Translator) -> dict[str, dict[str, Any]]:
    """Each of STAGES: its name with its setting, and whether it has anything to do."""
    s = plan.sampling
    settings = {
        "model": ("", True),
        "repetition": (f"{s.repetition_penalty:g}", s.repetition_penalty != 1),
        "temperature": (f"{s.temperature:g}", s.temperature != 1),
        "top_k": (str(s.top_k), s.top_k is not None),
        "top_p": (f"{s.top_p or 1:g}", s.top_p is not None and s.top_p != 1),
        "min_p": (f"{s.min_p or 0:g}", bool(s.min_p)),
    }
    return {
        key: {"name": t(f"steps.stage.{key}"), "set": value, "on": on, "title": t(f"steps.stage.{key}.title")}
        for key, (value, on) in settings.items()
    }


def _goes_on(shown: Shown) -> bool:
    stopped = shown.steps[-1].stopped if shown.steps else None
    return shown.ended and stopped in {None, "max_new_tokens"} and len(shown.steps) < LONGEST


def _label(token: "Token") -> dict[str, Any]:
    return {"text": token.label, "raw": token.raw, "id": token.id, "special": token.special, "joined": token.joined}


def _steps(steps: "Sequence[TokenStep]") -> dict[str, list[Any]]:
    """What every step is shown with, whichever is looked at: columns of numbers."""
    return {
        "tokens": [_label(token) for token in steps[-1].said],
        "p": [_short(step.prob) for step in steps],
        "drawn": [_short(step.drawn_prob) for step in steps],
        "surprise": [_short(step.surprise) for step in steps],
        "entropy": [_short(step.entropy) for step in steps],
        "ms": [_short(1000 * step.seconds) for step in steps],
        "bytes": [step.cache_bytes for step in steps],
        "taken": [int(by_hand(step)) for step in steps],
    }


def by_hand(step: "TokenStep") -> bool:
    """Whether a person took another token than the one drawn."""
    return step.forced and step.drawn != step.id


def _short(x: float) -> float:
    return float(f"{x:.6g}") if isfinite(x) else 1e9


def _details(step: "TokenStep") -> dict[str, Any]:
    """A step's candidates: their probability at each of STAGES, and that of all the others."""
    probs = np.array([[one.probs[key] for one in step.top] for key in STAGES], dtype="<f4")
    return {
        "ids": [one.id for one in step.top],
        "labels": [one.label for one in step.top],
        "ends": [[one.pieces, one.whole] if one.whole else 0 for one in step.top],
        "cuts": [len(STAGES) if one.cut is None else STAGES.index(one.cut) for one in step.top],
        "probs": _base64(probs),
        "rest": [_short(step.rest[key]) for key in STAGES],
        "kept": [step.kept[key] for key in STAGES],
    }


def _read(shown: Shown) -> dict[str, Any] | None:
    """The rows as codes: 0 = may not look, else 1 + round((n - 1) sqrt(weight)) with n = 65,535 or 255."""
    reading, skipped = shown.reading, 0
    if reading is None:
        return None
    rows = reading.rows
    if sum(map(len, rows)) > (WHOLE if shown.ended else LIGHT):
        skipped = min(len(shown.prompt) - 1, len(rows) - 1)  # the last prompt token's row is the first step's
    sent = rows[skipped:]
    kind = "<u2" if sum(map(len, sent)) <= CODES else "<u1"
    most = np.iinfo(kind).max - 1
    flat = np.concatenate(sent)
    codes = np.where(np.isnan(flat), 0, 1 + np.rint(most * np.sqrt(np.clip(np.nan_to_num(flat), 0, 1)))).astype(kind)
    return {
        "kind": reading.kind,
        "layer": reading.layer,
        "head": reading.head,
        "cross": reading.kind == "cross",
        "bits": 8 * codes.itemsize,
        "skipped": skipped,
        "lengths": [len(row) for row in sent],
        "codes": _base64(codes),
    }


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


# -- what was checked ------------------------------------------------------------------------------------------------


def badges(shown: Shown, t: Translator) -> list[Badge]:
    """Checks of the numbers that the picture shows."""
    steps = shown.steps
    if not steps:
        return []
    off = max(abs(1 - sum(one.probs[key] for one in step.top) - step.rest[key]) for step in steps for key in STAGES)
    found = [Badge(off <= SUM, t("steps.badge.sum", off=significant(off), n=len(steps) * len(STAGES)))]
    apart = max(abs(_taken(step, "model") - step.prob) for step in steps)
    found.append(Badge(apart <= SAME, t("steps.badge.shown", off=significant(apart))))
    own = [step for step in steps if not by_hand(step)]
    inside = sum(_taken(step, STAGES[-1]) > 0 for step in own)
    if own:
        found.append(Badge(inside == len(own), t("steps.badge.inside", n=len(own), inside=inside)))
    if own and shown.plan.sampling.temperature == 0:
        same = sum(_best(step) == step.id for step in own)
        found.append(Badge(same == len(own), t("steps.badge.greedy", n=len(own), same=same)))
    if shown.reading is not None:
        worst = max(float(abs(1 - np.nansum(row))) for row in shown.reading.rows)
        found.append(Badge(worst <= SUM, t("steps.badge.rows", off=significant(worst), n=len(shown.reading.rows))))
    return [*found, *_times(shown, t)]


def _taken(step: "TokenStep", stage: str) -> float:
    return next((one.probs[stage] for one in step.top if one.id == step.id), float("nan"))


def _best(step: "TokenStep") -> int:
    """The most probable token after the penalty, which is all that greedy decoding looks at."""
    return max(step.top, key=lambda one: one.probs["repetition"]).id


def _times(shown: Shown, t: Translator) -> list[Badge]:
    later = [step.seconds for step in shown.steps[1:] if not step.forced]  # a path is read in one pass
    path = [step.seconds for step in shown.steps if step.forced]
    if len(path) > 1:
        said = [Badge(None, t("steps.badge.path", n=len(path), took=milliseconds(sum(path))))]
    else:
        said = [Badge(None, t("steps.badge.first", took=milliseconds(shown.steps[0].seconds)))]
    if later:
        took = float(np.median(later))
        said.append(Badge(None, t("steps.badge.later", took=milliseconds(took), rate=significant(1 / max(took, 1e-9)))))
    return said


# -- what is wished --------------------------------------------------------------------------------------------------


def as_values(plan: "Plan") -> dict[str, Any]:
    """A plan as the browser keeps it, to ask for it again: the arguments of `planned`."""
    s = plan.sampling
    return {
        "new_tokens": plan.max_new_tokens,
        "temperature": s.temperature,
        "top_k": s.top_k or 0,
        "top_p": 1 if s.top_p is None else s.top_p,
        "min_p": s.min_p or 0,
        "repetition": s.repetition_penalty,
        "seed": plan.seed,
        "chat": plan.chat,
        "use_cache": plan.use_cache,
        "path": list(plan.path),
    }


def planned(values: Mapping[str, Any], kernel: str) -> "Plan":
    """The plan of the controls, or of what a browser asks for; numbers are pulled into what is allowed."""
    from tfviz.inference.sampling import Sampling
    from tfviz.introspection.run import Plan

    def number(name: str, otherwise: float, low: float, high: float) -> float:
        value = values.get(name)
        sound = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        return min(max(float(value), low), high) if sound else float(otherwise)  # type: ignore[arg-type]

    path = values.get("path")
    ids = [one for one in path if type(one) is int and one >= 0] if isinstance(path, list) else []
    sampling = Sampling(
        temperature=number("temperature", 1, 0, 2),
        top_k=int(number("top_k", 0, 0, 1_000_000)) or None,
        top_p=number("top_p", 1, 0.01, 1),
        min_p=number("min_p", 0, 0, 1),
        repetition_penalty=number("repetition", 1, 0.1, 10),
    )
    return Plan(
        max_new_tokens=int(number("new_tokens", 24, 1, LONGEST)),
        sampling=sampling,
        seed=int(number("seed", 0, 0, 2**31 - 1)),
        path=tuple(ids[:LONGEST]),
        use_cache=values.get("use_cache") is not False,
        kernel=kernel,
        chat=values.get("chat") is True,
    )


def draw(scene: Scene, ask: Mapping[str, Any], **controls: Any) -> Iterator[Picture]:
    assert scene.trace is not None
    made = json.dumps(controls)
    asked = ask.get("plan") if ask.get("made") == made else None  # other controls mean a new run
    plan = planned(asked if isinstance(asked, dict) else controls, scene.trace.kernel)
    notes, chat = [], bool(scene.examine(has_chat))
    if plan.chat and not chat:
        plan, notes = replace(plan, chat=False), [scene.t("steps.chat.none", model=scene.trace.model_label)]
    halt = isinstance(asked, dict) and ask.get("halt") is True
    run = live(scene, plan, again=not halt)
    if halt:
        run.halt()
    for n in run.follow(scene.stop):
        broken = [scene.t.error(run.error)] if isinstance(run.error, TfvizError) else []  # in the midst of it
        yield picture(replace(look(scene, run, n, made), chat=chat), scene.t, notes + broken)
    if run.error is not None and not isinstance(run.error, TfvizError):
        raise run.error


def has_chat(loaded: "LoadedModel", prompt: "Prompt") -> bool:
    from tfviz.sources.chat import has_chat_template

    return has_chat_template(loaded)


def look(scene: Scene, run: Live, n: int, made: str) -> Shown:
    """The first `n` steps of a run, with what the chosen head read in them."""
    assert run.run is not None and scene.trace is not None
    steps, ended = run.run.steps[:n], run.ended and n == len(run.run.steps)
    reading = read_by(run, n, scene.place)
    unread = "" if reading is not None else scene.t("steps.unread" if run.plan.use_cache else "steps.unread.cache")
    return Shown(
        id=run_id(run.plan),
        trace_id=scene.trace_id,
        plan=run.plan,
        made=made,
        prompt=run.run.prompt,
        source=scene.trace.source_tokens if scene.trace.family == "encoder-decoder" else (),
        steps=steps,
        reading=reading,
        why_unread=unread,
        ended=ended,
        halted=ended and run.halted,
    )


def read_by(run: Live, n: int, place: Mapping[str, Any]) -> Reading | None:
    """What the chosen head read in the first `n` steps; None for an attention that takes no part in them."""
    from tfviz.introspection.step_rows import step_rows

    assert run.run is not None
    where = place["kind"], place["layer"], place["head"]
    seen = run.run.seen[:n]
    if len(seen) < n or where[:2] not in seen[0]:
        return None
    kept = run.rows.pop(where, [])
    if len(kept) < n:
        kept = [*kept, *step_rows(seen, *where, first=len(kept))]
    run.rows[where] = kept  # last
    while len(run.rows) > HEADS:
        run.rows.pop(next(iter(run.rows)), None)
    return Reading(*where, [row for step in kept[:n] for row in step])


def controls(t: Translator) -> dict[str, Any]:
    def slider(name: str, low: float, high: float, value: float, step: float) -> gr.Slider:
        return gr.Slider(low, high, value=value, step=step, label=t(f"steps.{name}"), info=t(f"steps.{name}.info"))

    return {
        "new_tokens": gr.Slider(1, MOST, value=24, step=1, label=t("steps.new_tokens")),
        "temperature": slider("temperature", 0, 2, 0.8, 0.05),
        "top_k": slider("top_k", 0, 200, 40, 1),
        "top_p": slider("top_p", 0.05, 1, 0.95, 0.01),
        "min_p": slider("min_p", 0, 0.5, 0, 0.01),
        "repetition": slider("repetition", 1, 2, 1, 0.05),
        "seed": gr.Number(0, precision=0, minimum=0, label=t("steps.seed"), elem_id="generate-seed"),
        "chat": gr.Checkbox(False, label=t("steps.chat"), info=t("steps.chat.info"), elem_id="generate-chat"),
        "use_cache": gr.Checkbox(True, label=t("steps.use_cache"), info=t("steps.use_cache.info")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference import sampling
    from tfviz.introspection.generation import run_steps

    return run_steps, sampling.staged, *sampling.STAGES.values()


SECTION = Section(
    key="generate.steps",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    selects=("kind", "layer", "head"),
    origin=True,
    asks=True,
    tries=(
        Try("greedy", {"temperature": 0}),
        Try("hot", {"temperature": 1.5, "top_k": 0, "top_p": 1}),
        Try("one", {"temperature": 1, "top_k": 1}),
        Try("repetition", {"temperature": 0, "repetition": 1.3}),
        Try("chat", {"chat": True}, sentence="What is the capital of France? Answer in one sentence."),
    ),
    code=code,
)
