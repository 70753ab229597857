"""Speed, precision: what fewer bits a weight cost and save on the model that is on the page, and what they spoil."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from html import escape
from math import isfinite
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.speed_precision import head_divergence, losses, speeds, weight_shares
from tfviz.messages import ASSETS
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.components.speed_strip import PRECISIONS, precision_label
from tfviz.ui.i18n import Translator, megabytes, milliseconds, percent, ratio, significant

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.precision_point import PrecisionPoint, Trial

KEY = "speed.precision"
BASE = "fp32"
UNROUNDED = "minilm-l6"  # a model whose weights were never in 4 bits
GRID = 0.02  # relative rounding error of INT4 below which the weights lie on a grid of 4 bits: others have .07
CLAIMED_BYTES = {"fp16": 50.0, "int8_weights": 25.0, "int8": 25.0, "int4": 12.5}  # % of FP32, by the article
CLAIMED_SPEED = {"fp16": 1.5, "int8_weights": 2.0, "int8": 2.0, "int4": 3.0}
BOUND = 1e-6  # rounding of a sum beyond the end of what it can be
PAUSE = 0.7  # seconds between two pictures of which only the progress is new
FORMULAS = (
    r"W \approx s\,Q,\quad Q \in \{-2^{b-1}, \dots, 2^{b-1}-1\} \qquad \text{bytes} = \tfrac{b}{8}\,N + \text{scales}",
    r"D_{\mathrm{KL}} = \sum_v p_{32}(v) \ln \frac{p_{32}(v)}{p_b(v)} \qquad"
    r"\mathrm{TV} = \tfrac12 \sum_k |a_{32}(k) - a_b(k)|",
)


@dataclass(frozen=True)
class About:
    """What the picture says besides what was measured."""

    model: str = ""
    label: str = ""
    family: str = "decoder"
    device: str = ""
    threads: int = 1
    chosen: str = "int4"  # whose heads are shown
    place: Mapping[str, Any] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)  # precision -> why this device or model has it not


def draw(scene: Scene, chosen: str = "int4", measure: bool = False) -> Iterator[Picture]:
    from tfviz.introspection.precision_point import records
    from tfviz.introspection.precision_trial import trial

    assert scene.trace is not None
    model, about = scene.trace.model, _about(scene, chosen)
    texts, key = _texts(model, scene.trace.family), (KEY, model, scene.trace.revision)
    found: Trial | None = scene.kept(key)
    if measure:
        get, able = partial(scene.bench.resident.get, model), [one for one in PRECISIONS if one not in about.lacks]
        told, shown = 0.0, 0
        for found in trial(get, texts, able, scene.compute, scene.stop):
            if found.points:
                scene.keep(key, found, records(found, model))
            news = len(found.points) + len(found.failed)
            if found.part < 1 and (news != shown or time.monotonic() - told > PAUSE):
                told, shown = time.monotonic(), news
                yield picture(found, about, scene.t, found.part)
        if scene.stop():
            return
    yield replace(picture(found, about, scene.t), last=True)


@cache
def prose(kind: str) -> tuple[str, ...]:
    """The texts that come with tfviz: "evaluation" or "calibration"."""
    return tuple(json.loads((ASSETS / "examples" / "prose.json").read_text(encoding="utf-8"))[kind])


def _texts(model: str, family: str) -> Sequence[str]:
    """What quality is judged on: our prose, or the examples of a model that reads something else."""
    from tfviz.ui.examples import examples

    own = examples(model)
    return own if family == "encoder-decoder" and own != examples("") else prose("evaluation")


def _about(scene: Scene, chosen: str) -> About:
    from tfviz.inference.device import describe
    from tfviz.inference.precision import PRECISIONS as RECIPES

    assert scene.trace is not None
    device, trace = scene.bench.resident.device, scene.trace
    told = describe(device)
    reasons = {key: recipe.unsupported(device) for key, recipe in RECIPES.items()}
    lacks = {key: scene.t(reason) for key, reason in reasons.items() if reason is not None}
    where = (told.name, told.threads or 1)
    return About(trace.model, trace.model_label, trace.family, *where, chosen, dict(scene.place), lacks)


def picture(found: "Trial | None", about: About, t: Translator, part: float | None = None) -> Picture:
    """Figures and the table of what was measured so far; before that, what would be."""
    points = {} if found is None else found.points
    lacks = dict(about.lacks)
    if found is not None:
        lacks |= {name: t.error(error) for name, error in found.failed.items()}
    notes = []
    if part is not None and found is not None:
        doing, name = found.doing
        notes.append(t(f"{KEY}.doing.{doing}", name=precision_label(name)))
    elif not points:
        notes.append(t(f"{KEY}.ready", model=about.label, device=about.device, threads=about.threads))
    if not points:
        return Picture([_claims(t), *_only_reasons(lacks, t)], notes=notes, part=part)
    assert found is not None
    numbers = _tables(points, found.prefill_tokens, lacks, t)
    panels = [_shares(points, t), _speeds(points, found.prefill_tokens, about, t), *_quality(points, about, t)]
    flattered = _flattered(points, about, t)
    return Picture([*panels, *numbers, *flattered], badges(points, t) if part is None else (), notes, part)


# ---- panels


def _names(points: Mapping[str, "PrecisionPoint"]) -> list[str]:
    return [name for name in PRECISIONS if name in points]


def _claims(t: Translator) -> Panel:
    """What the article says, before anything was measured."""
    heads = [t(f"{KEY}.head.{name}") for name in ("bytes", "speed")]
    rows = [
        (precision_label(name), [f"\u2212{100 - CLAIMED_BYTES[name]:.3g} %", ratio(CLAIMED_SPEED[name])])
        for name in CLAIMED_BYTES
    ]
    from tfviz.ui.components.picture import table

    caption = t(f"{KEY}.claims")
    return Panel(html=table(caption, heads, rows), title=caption, note=t(f"{KEY}.claims.note"))


def _only_reasons(lacks: Mapping[str, str], t: Translator) -> list[Panel]:
    rows = "".join(f"<li><b>{escape(precision_label(name))}</b>: {escape(why)}</li>" for name, why in lacks.items())
    return [Panel(html=f'<ul class="tv-precision-off">{rows}</ul>', title=t(f"{KEY}.lacks"))] if lacks else []


def _shares(points: Mapping[str, "PrecisionPoint"], t: Translator) -> Panel:
    names, whole = _names(points), points[BASE].weight_bytes
    shares = np.array([100 * points[name].weight_bytes / whole for name in names], dtype=np.float32)
    sizes = [megabytes(points[name].weight_bytes) for name in names]
    claims = {precision_label(name): CLAIMED_BYTES[name] for name in names if name in CLAIMED_BYTES}
    words = [t(f"{KEY}.{word}") for word in ("share", "measured", "article_says")]
    figure = weight_shares([precision_label(name) for name in names], shares, sizes, claims, words=words)
    return Panel(figure, t(f"{KEY}.weights"), t(f"{KEY}.weights.note"))


def _speeds(points: Mapping[str, "PrecisionPoint"], n: int, about: About, t: Translator) -> Panel:
    names = [name for name in _names(points) if name != BASE]
    measured = {t(f"{KEY}.prefill", n=n): _spread([points[one] for one in names], "prefill")}
    if points[BASE].decode is not None:
        measured[t(f"{KEY}.decode")] = _spread([points[one] for one in names], "decode")
    claims = {precision_label(name): CLAIMED_SPEED[name] for name in names if name in CLAIMED_SPEED}
    words = [t(f"{KEY}.times"), t(f"{KEY}.article_says")]
    figure = speeds([precision_label(name) for name in names], measured, claims, words=words)
    return Panel(figure, t(f"{KEY}.speed"), t(f"{KEY}.speed.note", device=about.device, threads=about.threads))


def _spread(points: Sequence["PrecisionPoint"], phase: str) -> np.ndarray:
    """FP32's median over this precision's (high, median, low) times: [low, median, high] speeds, a column each."""
    found = []
    for point in points:
        own, beside = getattr(point, phase), getattr(point, f"{phase}_beside")
        missing = own is None or beside is None
        found.append([np.nan] * 3 if missing else [beside.median / one for one in (own.high, own.median, own.low)])
    return np.array(found, dtype=np.float32).reshape(-1, 3).T


def _quality(points: Mapping[str, "PrecisionPoint"], about: About, t: Translator) -> list[Panel]:
    """How far the output is from FP32's, and how far each head's attention."""
    names = [name for name in _names(points) if name != BASE and points[name].read]
    if not names:
        return []
    by_cosine = points[names[0]].kl is None
    values = [_loss(points[name]) for name in names]
    texts = [_in_short(points[name], t) for name in names]
    word = "cosine" if by_cosine else "kl"
    figure = losses(
        [precision_label(name) for name in names],
        np.array(values, dtype=np.float32),
        texts,
        words=[t(f"{KEY}.axis.{word}")],
    )
    read = {"n": points[names[0]].read}
    side = f"{KEY}.loss.{word}" + (".forced" if about.family == "encoder-decoder" and not by_cosine else "")
    return [Panel(figure, t(f"{KEY}.loss"), t(side, **read)), *_heads(points, about, t)]


def _loss(point: "PrecisionPoint") -> float:
    return float(point.kl if point.kl is not None else 1 - (point.cosine or 0.0))


def _in_short(point: "PrecisionPoint", t: Translator) -> str:
    if point.top1 is None:
        return f"{point.cosine:.5f}"
    return percent(point.top1)


def _heads(points: Mapping[str, "PrecisionPoint"], about: About, t: Translator) -> list[Panel]:
    point = points.get(about.chosen)
    kinds = {} if point is None else point.maps
    title = t(f"{KEY}.heads", name=precision_label(about.chosen))
    if not kinds:
        missing = t(f"{KEY}.heads.none", name=precision_label(about.chosen))
        return [Panel(html=f'<p class="tv-soft">{escape(missing)}</p>', title=title)]
    kind = str(about.place.get("kind"))
    kind = kind if kind in kinds else next(iter(kinds))
    apart = kinds[kind]
    layer, head = int(about.place.get("layer", 0)), int(about.place.get("head", 0))
    chosen = (layer, head) if layer < apart.shape[0] and head < apart.shape[1] else None
    most = np.unravel_index(int(np.nanargmax(apart)), apart.shape)
    fields = {"mean": _percent(np.nanmean(apart)), "most": _percent(apart[most]), "layer": most[0], "head": most[1]}
    note = t(f"{KEY}.heads.note", **fields)
    if chosen is not None:
        note += " " + t(f"{KEY}.heads.chosen", own=_percent(apart[chosen]), layer=layer, head=head)
    words = [t(f"{KEY}.axis.{word}") for word in ("head", "layer", "moved")]
    if len(kinds) > 1:
        title += f" · {t(f'{KEY}.kind.{kind}')}"
    figure = head_divergence(apart, chosen, words=words)
    return [Panel(figure, title, note, select={"x": "head", "y": "layer"})]


def _percent(share: float) -> str:
    return f"{significant(100 * float(share))} %"


def _tables(points: Mapping[str, "PrecisionPoint"], n: int, lacks: Mapping[str, str], t: Translator) -> list[Panel]:
    """Every figure; what is missing here stands greyed with its reason."""
    written = points[BASE].decode is not None
    costs = ["weights", "bytes", "prefill", "prefill_times", *["decode", "decode_times", "tokens"] * written, "peak"]
    judged = [one for one in ("perplexity", "kl", "top1", "cosine") if any(getattr(p, one) for p in points.values())]
    losses = [*judged, "moved", "rounding"]
    parts = {t(f"{KEY}.table.costs"): costs, t(f"{KEY}.table.losses"): losses}
    return [
        Panel(html=_table(title, columns, points, n, lacks, t), title=title, wide=True)
        for title, columns in parts.items()
    ]


def _table(
    title: str,
    columns: Sequence[str],
    points: Mapping[str, "PrecisionPoint"],
    n: int,
    lacks: Mapping[str, str],
    t: Translator,
) -> str:
    head = "".join(f'<th scope="col">{escape(t(f"{KEY}.head.{one}", n=n))}</th>' for one in columns)
    rows = "".join(_row(name, points, columns, lacks, t) for name in PRECISIONS)
    said, named = f'<caption class="tv-hidden">{escape(title)}</caption>', f'role="group" aria-label="{escape(title)}"'
    whole = f'<table class="tv-table">{said}<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="tv-scroll tv-precision-table" tabindex="0" {named}>{whole}</div>'


def _row(
    name: str,
    points: Mapping[str, "PrecisionPoint"],
    columns: Sequence[str],
    lacks: Mapping[str, str],
    t: Translator,
) -> str:
    label = escape(precision_label(name))
    if name in points:
        cells = _cells(points[name], points[BASE])
        return f'<tr><th scope="row">{label}</th>{"".join(f"<td>{escape(cells[one])}</td>" for one in columns)}</tr>'
    if name in lacks:
        why = f'<td colspan="{len(columns)}">{escape(lacks[name])}</td>'
        return f'<tr class="tv-precision-lacks"><th scope="row">{label}</th>{why}</tr>'
    return f'<tr><th scope="row">{label}</th>{"<td>…</td>" * len(columns)}</tr>'


def _cells(point: "PrecisionPoint", base: "PrecisionPoint") -> dict[str, str]:
    decode, speed, maps = point.decode, point.decode_speed, list(point.maps.values())
    moved = float(np.mean([np.nanmean(one) for one in maps])) if maps else None
    shown: dict[str, Any] = {
        "weights": megabytes(point.weight_bytes),
        "bytes": _percent(point.weight_bytes / base.weight_bytes),
        "prefill": milliseconds(point.prefill.median),
        "prefill_times": ratio(point.prefill_speed),
        "decode": decode and milliseconds(decode.median),
        "decode_times": speed and ratio(speed),
        "tokens": decode and significant(1 / decode.median),
        "peak": megabytes(point.peak_bytes),
        "perplexity": point.perplexity and significant(point.perplexity, 4),
        "kl": None if point.kl is None else significant(point.kl),
        "top1": None if point.top1 is None else percent(point.top1),
        "cosine": None if point.cosine is None else f"{point.cosine:.5f}",
        "moved": None if moved is None else _percent(moved),
        "rounding": None if point.weight_error is None else _percent(point.weight_error),
    }
    return {name: "–" if value is None else value for name, value in shown.items()}


def _flattered(points: Mapping[str, "PrecisionPoint"], about: About, t: Translator) -> list[Panel]:
    """Whether INT4 found the grid again that the weights came from; measured, not known by the model's name."""
    error = points["int4"].weight_error if "int4" in points else None
    if error is None or not points["int4"].read:
        return []
    on_grid = error < GRID
    said = t(f"{KEY}.grid" if on_grid else f"{KEY}.no_grid", error=_percent(error), model=about.label)
    link = ""
    if on_grid and about.model != UNROUNDED:
        address = f"?model={UNROUNDED}&tab=speed&section={KEY}"
        link = f'<p><a class="tv-precision-other" href="{escape(address)}">{escape(t(f"{KEY}.other"))}</a></p>'
    html = f'<div class="tv-precision-grid"><p>{escape(said)}</p>{link}</div>'
    return [Panel(html=html, title=t(f"{KEY}.grid.title"), wide=True)]


# ---- sentences


def badges(points: Mapping[str, "PrecisionPoint"], t: Translator) -> list[Badge]:
    """FP32 read twice is itself; every figure lies where it can lie; what is fastest, and what is slower than FP32."""
    base = points[BASE]
    others = [points[name] for name in _names(points) if name != BASE]
    found = []
    if base.read:
        apart = max([_loss(base), *(float(np.nanmax(one)) for one in base.maps.values())])
        agrees = apart <= BOUND and base.top1 in (None, 1.0)
        key = f"{KEY}.badge.same" if agrees else f"{KEY}.badge.same.not"
        found.append(Badge(agrees, t(key, apart=significant(apart)), t(f"{KEY}.badge.same.title")))
        wrong = [precision_label(point.precision) for point in points.values() if not _possible(point)]
        key = f"{KEY}.badge.possible" if not wrong else f"{KEY}.badge.possible.not"
        found.append(Badge(not wrong, t(key, names=", ".join(wrong)), t(f"{KEY}.badge.possible.title")))
    phase = "prefill" if base.decode is None else "decode"
    rated = [(getattr(point, f"{phase}_speed"), point.precision) for point in others]
    if rated and max(rated)[0] > 1:
        speed, name = max(rated)
        fields = {"phase": t(f"{KEY}.phase.{phase}"), "name": precision_label(name), "ratio": ratio(speed)}
        found.append(Badge(None, t(f"{KEY}.badge.fastest", **fields)))
    slower = [_slower(point, phase, t) for point in others for phase in ("prefill", "decode")]
    if any(slower):
        found.append(Badge(None, t(f"{KEY}.badge.slower", those=", ".join(filter(None, slower)))))
    return found


def _possible(point: "PrecisionPoint") -> bool:
    """KL is not below 0, shares are between 0 and 1, a perplexity is 1 at least; all are numbers."""
    shares = [point.top1, *(float(value) for one in point.maps.values() for value in (np.nanmin(one), np.nanmax(one)))]
    inside = all(value is None or -BOUND <= value <= 1 + BOUND for value in shares)
    inside &= point.kl is None or point.kl >= -BOUND
    inside &= point.cosine is None or abs(point.cosine) <= 1 + BOUND
    inside &= point.perplexity is None or (isfinite(point.perplexity) and point.perplexity >= 1 - BOUND)
    return bool(inside)


def _slower(point: "PrecisionPoint", phase: str, t: Translator) -> str:
    speed = getattr(point, f"{phase}_speed")
    if speed is None or speed >= 1:
        return ""
    return f"{precision_label(point.precision)} {t(f'{KEY}.phase.{phase}')} {ratio(speed)}"


def controls(t: Translator) -> dict[str, Any]:
    choices = [(label, key) for key, label in PRECISIONS.items() if key != BASE]
    return {"chosen": gr.Radio(choices, value="int4", label=t(f"{KEY}.chosen"))}


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.precision.int4 import Int4Linear
    from tfviz.inference.precision.int8 import Int8Linear
    from tfviz.inference.precision.int8_weights import Int8WeightLinear
    from tfviz.introspection.precision_quality import judge
    from tfviz.introspection.precision_trial import timed

    return timed, judge, Int8WeightLinear, Int8Linear, Int4Linear


SECTION = Section(
    key=KEY,
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    selects=("kind", "layer", "head"),
    button=f"{KEY}.button",
    code=code,
)
