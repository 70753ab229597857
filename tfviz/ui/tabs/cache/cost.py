"""KV cache, the cost: one decode step with and without it, timed as the text grows, beside what the formula says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.cache import cache_memory, step_times, step_work, time_areas
from tfviz.figures.theme import SERIES, plain
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.components.speed_strip import precision_label
from tfviz.ui.i18n import Translator, megabytes, milliseconds, ratio, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.work import DecoderShape, Work
    from tfviz.introspection.cache_cost import Point, Prospect, Sweep
    from tfviz.introspection.growth import Fit

KEY = "cache.cost"  # under which a sweep is kept with its trace
WAYS = ("cached", "uncached")
DRAWN = 48  # contexts of a line that is drawn by formula
FORMULAS = (
    r"\text{with: } \underbrace{O(1)}_{\text{weights}} + \underbrace{O(n)}_{\text{attention}} \qquad"
    r" \text{without: } \underbrace{O(n)}_{\text{weights}} + \underbrace{O(n^2)}_{\text{attention}}",
)


def draw(scene: Scene, measure: bool = False) -> Iterator[Picture]:
    from tfviz.inference.device import describe
    from tfviz.introspection import cache_cost

    assert scene.trace is not None
    ahead = scene.examine(cache_cost.prospect)
    memory = len(scene.trace.source_tokens) if ahead.shape.cross else 0
    machine = describe(scene.bench.resident.device)
    said = {
        "model": scene.trace.model_label,
        "precision": precision_label(scene.trace.precision),
        "device": machine.name,
        "threads": machine.threads or 1,
    }
    found = scene.bench.recall(scene.trace_id, KEY)
    if measure:
        job = partial(cache_cost.sweep, kernel=scene.trace.kernel, shape=ahead.shape)
        drawn = -1
        for found in scene.stream(job):
            if found.part < 1:
                new = len(found.points) != drawn
                drawn = len(found.points)
                if new or not drawn:
                    yield picture(found, ahead, memory, said, scene.t, part=found.part)
        if scene.stop():
            return
        scene.bench.remember(scene.trace_id, KEY, found)
    yield picture(found, ahead, memory, said, scene.t)


def picture(
    sweep: "Sweep | None",
    ahead: "Prospect",
    memory: int,
    where: Mapping[str, object],
    t: Translator,
    part: float | None = None,
) -> Picture:
    """Curves and numbers of what has been measured; before that, and beside it, what the formula says."""
    points = () if sweep is None else sweep.points
    shape = ahead.shape
    work = Panel(_work(ahead, memory, t), t("cache.cost.work"), _half(ahead, memory, t))
    notes = [t("cache.cost.ready", **where)] if sweep is None else []
    if sweep is not None and sweep.left_out is not None:
        notes.append(t("cache.cost.left_out", n=f"{sweep.left_out:,}"))
    if shape.uncounted:
        notes.append(t("cache.steps.note.experts"))
    numbers = _table(points, ahead, memory, t)
    room = Panel(_memory(points, ahead, memory, t), t("cache.cost.memory"), _room(ahead, memory, t))
    if not points:
        return Picture([work, room, numbers], notes=notes, part=part)
    times = Panel(_times(points, t), t("cache.cost.time"), _fits(points, t) + " " + t("cache.cost.where", **where))
    if part is not None:
        return Picture([times, work, numbers], notes=notes, part=part)
    panels = [times, work, *([_areas(points, t)] if len(points) > 1 else []), room, numbers]
    return Picture(panels, badges(points, shape, memory, t), notes)


# ---- figures


def _medians(points: Sequence["Point"], way: str) -> list[float]:
    return [getattr(one, way).median for one in points]


def _times(points: Sequence["Point"], t: Translator) -> Any:
    from tfviz.introspection.growth import crossing

    n = [one.n for one in points]
    measured, fitted = {}, {}
    for way in WAYS:
        name, line = t(f"cache.cost.{way}"), fit_of(points, way)
        took = [(getattr(one, way).low, getattr(one, way).median, getattr(one, way).high) for one in points]
        measured[name] = np.array(took, dtype=np.float32).T * 1e3
        if line is not None:
            used = np.array(line.used)
            fitted[name] = used, (1e3 * line.factor * used**line.exponent).astype(np.float32)
    met = crossing(n, *(_medians(points, way) for way in WAYS))
    words = [t("cache.cost.context"), t("cache.cost.ms"), t("cache.cost.crossing")]
    return step_times(np.array(n), measured, fitted, met, words=words)


def fit_of(points: Sequence["Point"], way: str) -> "Fit | None":
    from tfviz.introspection.growth import fit

    return fit([one.n for one in points], _medians(points, way))


def _contexts(ahead: "Prospect", times: int) -> np.ndarray:
    """Up to so many times the longest that is measured, and never beyond the model's last position."""
    longest = times * max(ahead.lengths[-1], 2)
    return np.unique(np.geomspace(1, min(longest, ahead.limit or longest), DRAWN).round().astype(int))


def _marked(figure: Any, n: np.ndarray, limit: int | None, t: Translator) -> Any:
    """The model's last position, where the curves end at it."""
    if limit is None or n[-1] < limit:
        return figure
    line = {"color": SERIES[5], "width": 1.5, "dash": "dot"}
    figure.add_shape(type="line", x0=limit, x1=limit, y0=0, y1=1, yref="paper", line=line)
    said = {"text": plain(t("cache.cost.last", limit=f"{limit:,}")), "showarrow": False}
    return figure.add_annotation(
        x=float(np.log10(limit)), y=0, yref="paper", xanchor="right", yanchor="bottom", xshift=-4, **said
    )


def _ways() -> dict[str, Callable[["DecoderShape", int, int], "Work"]]:
    from tfviz.inference.work import with_cache, without_cache

    return {"cached": with_cache, "uncached": without_cache}


def _work(ahead: "Prospect", memory: int, t: Translator) -> Any:
    n = _contexts(ahead, 4)
    predicted = {}
    for way, work in _ways().items():
        every = [work(ahead.shape, int(one), memory) for one in n]
        of_attention = [one.scores + one.values for one in every]
        predicted[t(f"cache.cost.{way}")] = np.array([[one.total for one in every], of_attention], dtype=np.float32)
    words = [t("cache.cost.context"), t("cache.cost.adds"), t("cache.cost.attention")]
    return _marked(step_work(n, predicted, words=words), n, ahead.limit, t)


def _areas(points: Sequence["Point"], t: Translator) -> Panel:
    from tfviz.introspection.cache_cost import totals
    from tfviz.introspection.growth import between

    n, sums = [one.n for one in points], totals(points)
    steps = np.unique(np.linspace(n[0], n[-1], 128).round().astype(int))
    seconds = {
        t("cache.cost.area", way=t(f"cache.cost.{way}"), total=_seconds(sums[way])): 1e3
        * between(n, _medians(points, way), steps).astype(np.float32)
        for way in WAYS
    }
    fields = {"first": f"{n[0]:,}", "last": f"{n[-1]:,}", "with": _seconds(sums["cached"])}
    gain = {"without": _seconds(sums["uncached"]), "ratio": ratio(sums["uncached"] / sums["cached"])}
    figure = time_areas(steps, seconds, words=[t("cache.cost.token"), t("cache.cost.ms")])
    return Panel(figure, t("cache.cost.total"), t("cache.cost.total.note", **fields, **gain))


def _memory(points: Sequence["Point"], ahead: "Prospect", memory: int, t: Translator) -> Any:
    n = _contexts(ahead, 8)
    line = np.array([_cache_bytes(ahead.shape, int(one), memory) for one in n], dtype=np.float32) / 2**20
    at = np.array([one.n for one in points], dtype=np.int64)
    held = np.array([one.cache_bytes for one in points], dtype=np.float32) / 2**20
    names = ("context", "mib", "formula", "measured", "weights")
    words = [t(f"cache.cost.{name}") for name in names]
    figure = cache_memory(n, line, (at, held), ahead.weights / 2**20, words=words)
    return _marked(figure, n, ahead.limit, t)


def _cache_bytes(shape: "DecoderShape", n: int, memory: int) -> int:
    """By the formula; a window is counted in full, though a cache that drops what is outside may hold one less."""
    own = sum(one.cached(shape.element) * min(n, one.window or n) for one in shape.own)
    return own + shape.cached("cross") * memory


def _table(points: Sequence["Point"], ahead: "Prospect", memory: int, t: Translator) -> Panel:
    """A row for each context; the columns of times come with the first one that is measured."""
    measured = {one.n: one for one in points}
    names = ["cached", "uncached", "ratio"] * bool(points)
    rows = []
    for n in ahead.lengths:
        one = measured.get(n)
        work = [work(ahead.shape, n, memory).total for work in _ways().values()]
        cells = ["–"] * len(names)
        if one is not None:
            cells = [_spread(one.cached), _spread(one.uncached), ratio(one.uncached.median / one.cached.median)]
        size = one.cache_bytes if one is not None else _cache_bytes(ahead.shape, n, memory)
        rows.append((f"n\u00a0=\u00a0{n:,}", [*cells, *map(_count, work), ratio(work[1] / work[0]), megabytes(size)]))
    names += ["work_with", "work_without", "work_ratio", "memory"]
    html = table(t("cache.cost.table"), [t(f"cache.cost.head.{name}") for name in names], rows)
    note = t("cache.cost.table.note" if points else "cache.cost.table.note.formula")
    return Panel(html=html, title=t("cache.cost.table"), note=note, wide=True)


def _spread(took: Any) -> str:
    return f"{milliseconds(took.median)} ({significant(took.low * 1e3)}–{significant(took.high * 1e3)})"


def _count(n: float) -> str:
    for unit in ("", " K", " M", " G"):
        if n < 1000:
            return f"{significant(n)}{unit}"
        n /= 1000
    return f"{significant(n)} T"


def _seconds(seconds: float) -> str:
    return f"{significant(seconds)} s"


# ---- sentences


def _fits(points: Sequence["Point"], t: Translator) -> str:
    fits = [fit_of(points, way) for way in WAYS]
    if fits[0] is None or fits[1] is None:
        return t("cache.cost.fit.none")
    used = f"{fits[0].used[0]:,} – {fits[0].used[-1]:,}"
    exponents = {way: _exponent(line) for way, line in zip(WAYS, fits, strict=True) if line is not None}
    return t("cache.cost.fit", **exponents, used=used, n=len(fits[0].used))


def _exponent(line: "Fit") -> str:
    return f"{round(line.exponent, 2) + 0.0:.2f}".replace("-", "\u2212")  # + 0.0: no minus before a zero


def _half(ahead: "Prospect", memory: int, t: Translator) -> str:
    """From which context on attention is half of a step: where the model has that many positions."""
    from tfviz.introspection.cache_cost import half_attention

    shape, fields = ahead.shape, {}
    for way, work in _ways().items():
        n = half_attention(partial(_of_context, work, shape, memory))
        if n is not None and (ahead.limit is None or n <= ahead.limit):
            fields[way] = t("cache.cost.half.from", n=f"{n:,}")
        else:
            never = "never" if ahead.limit is None or n is None else "beyond"
            fields[way] = t(f"cache.cost.half.{never}", limit=f"{ahead.limit or 0:,}")
    return t("cache.cost.half", **fields, linear=_count(shape.linear + shape.head), pair=_count(shape.attention))


def _of_context(work: Callable[..., "Work"], shape: "DecoderShape", memory: int, n: int) -> "Work":
    return work(shape, n, memory)


def _room(ahead: "Prospect", memory: int, t: Translator) -> str:
    """How large the cache gets beside the weights, as far as the model has positions."""
    shape, fields = ahead.shape, {"weights": megabytes(ahead.weights)}
    a_token = shape.cached("own")
    if any(one.window for one in shape.own):
        return t("cache.cost.memory.window", token=f"{a_token:,}")
    n = ahead.weights // a_token
    if ahead.limit is None or n <= ahead.limit:
        return t("cache.cost.memory.note", token=f"{a_token:,}", n=f"{n:,}", **fields)
    fields["cache"] = megabytes(_cache_bytes(shape, ahead.limit, memory))
    return t("cache.cost.memory.limit", token=f"{a_token:,}", limit=f"{ahead.limit:,}", **fields)


def badges(points: Sequence["Point"], shape: "DecoderShape", memory: int, t: Translator) -> list[Badge]:
    """The cache's measured bytes against the formula; which way is faster, and whether the curves ever cross."""
    from tfviz.introspection.growth import crossing

    growing = not any(one.window for one in shape.own)
    wrong = [one for one in points if one.cache_bytes != _cache_bytes(shape, one.n, memory)] if growing else []
    last = points[-1]
    shown = wrong[0] if wrong else last
    fields = {
        "n": f"{shown.n:,}",
        "measured": f"{shown.cache_bytes:,}",
        "predicted": f"{_cache_bytes(shape, shown.n, memory):,}",
    }
    key = "cache.cost.badge.bytes.differ" if wrong else "cache.cost.badge.bytes"
    gain = last.uncached.median / last.cached.median
    faster = "faster" if gain >= 1 else "slower"
    told = [Badge(None, t(f"cache.cost.badge.{faster}", n=f"{last.n:,}", ratio=ratio(max(gain, 1 / gain))))]
    met = crossing([one.n for one in points], *(_medians(points, way) for way in WAYS))
    if met is not None:
        told.append(Badge(None, t("cache.cost.badge.crossing", n=significant(met))))
    elif all(one.uncached.median > one.cached.median for one in points):
        told.append(Badge(None, t("cache.cost.badge.always", n=f"{points[0].n:,}")))
    return [*([Badge(not wrong, t(key, **fields))] if growing else []), *told]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.work import step_work as work
    from tfviz.inference.work import with_cache, without_cache
    from tfviz.introspection.cache_cost import sweep
    from tfviz.introspection.growth import fit

    return work, with_cache, without_cache, sweep, fit


SECTION = Section(key="cache.cost", draw=draw, formulas=FORMULAS, origin=True, button="cache.cost.button", code=code)
