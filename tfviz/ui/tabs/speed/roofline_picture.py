"""The roofline section's picture: points under the roof, predicted against measured, the table and what was checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.speed_roofline import PartPoints, part_scatter, roofline
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, megabytes, milliseconds, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.roofline import Part, Roofs
    from tfviz.introspection.roofline_parts import Counted
    from tfviz.introspection.roofline_run import Found

KEY = "speed.roofline"
ALLOWED = 0.25  # median of |error| that is still a good prediction
SUMMED = 0.25  # how far the parts' sum may be from the whole pass without a word about it
NAMES = ("projections", "attention", "feed_forward", "head", "other")
WORKING_SETS = {"dram": 2**28, "cache": 2**22}
SHOWN_DTYPES = ("fp32", "fp16", "bf16", "int8")


@dataclass(frozen=True)
class Where:
    """What the picture says besides what was measured."""

    model: str
    precision: str
    device: str
    threads: int
    n: int  # tokens that were asked for


def before(roofs: "Roofs | None", where: Where, t: Translator) -> Picture:
    """What is there to show while the model's operators are counted: the machine's limits, if they are known."""
    panels = [_limits(roofs, where, t)] if roofs is not None and roofs.times else []
    return Picture(panels, notes=[t(f"{KEY}.ready", **vars(where)), t(f"{KEY}.counting")])


def picture(
    counted: "Counted",
    found: "Found | None",
    roofs: "Roofs | None",
    where: Where,
    t: Translator,
    part: float | None = None,
) -> Picture:
    """Before a measurement the work and the bytes by formula; then times as they arrive."""
    timed = found is not None and found.timed is not None
    n = counted.phases[0].n
    notes = [] if timed or part is not None else [t(f"{KEY}.ready", **{**vars(where), "n": n})]
    if n < where.n:
        notes.append(t(f"{KEY}.cut", n=n, asked=where.n))
    if part is not None and not timed:
        notes.append(t(f"{KEY}.probing"))
    panels = [_work(counted, t)]
    if timed and found is not None:
        panels = [_roof(found, where, t), _scatter(found, t)]
    panels.append(_table(counted, found if timed else None, t))
    if roofs is not None and roofs.times:
        panels.append(_limits(roofs, where, t))
    told = badges(found, t) if timed and found is not None and part is None else []
    return Picture(panels, told, notes, part)


# ---- figures


def _points(
    parts: Sequence["Part"], t: Translator, x: Callable[["Part"], float], y: Callable[["Part"], float], told: Any
) -> list[PartPoints]:
    found = []
    for name in NAMES:
        mine = [one for one in parts if one.name == name]
        at_x, at_y = (np.array([f(one) for one in mine], dtype=np.float64) for f in (x, y))
        hollow = [one.phase == "decode" for one in mine]
        found.append(PartPoints(t(f"{KEY}.part.{name}"), at_x, at_y, hollow, [told(one) for one in mine]))
    return found


def _work(counted: "Counted", t: Translator) -> Panel:
    def told(one: "Part") -> str:
        return "\n".join((label(one, t), *_counts(one, t)))

    points = _points(counted.parts, t, lambda one: one.nbytes, lambda one: one.flops, told)
    words = [t(f"{KEY}.{name}") for name in ("bytes", "flops", "one")]
    return Panel(part_scatter(points, words=words), t(f"{KEY}.work"), t(f"{KEY}.work.note"), wide=True)


def _counts(one: "Part", t: Translator) -> tuple[str, ...]:
    counts = f"{count(one.flops)}FLOP, {megabytes(one.nbytes)}"
    return counts, t(f"{KEY}.hover.intensity", intensity=significant(one.intensity))


def _told(found: "Found", t: Translator) -> Callable[["Part"], str]:
    def told(one: "Part") -> str:
        took, predicted = found.measured(one), found.predicted(one)
        if took is None:
            return label(one, t)
        times = {"measured": milliseconds(took.low), "predicted": milliseconds(predicted.seconds)}
        error = signed(found.error(one) or 0.0)
        lines = (t(f"{KEY}.hover.times", error=error, **times), t(f"{KEY}.hover.{predicted.bound}"))
        speed = f"{count(one.flops / took.low)}FLOP/s, {count(one.nbytes / took.low)}B/s"
        return "\n".join((label(one, t), *_counts(one, t), *lines, speed))

    return told


def _measured(found: "Found") -> list["Part"]:
    return [one for one in found.counted.parts if found.measured(one) is not None]


def _roof(found: "Found", where: Where, t: Translator) -> Panel:
    def speed(one: "Part") -> float:
        took = found.measured(one)
        assert took is not None
        return one.flops / took.low

    roofs = found.roofs
    slopes = {
        t(f"{KEY}.roof.{name}", speed=f"{count(roofs.bandwidth(nbytes))}B/s"): roofs.bandwidth(nbytes)
        for name, nbytes in WORKING_SETS.items()
    }
    peaks = {f"{name.upper()} {count(peak)}FLOP/s": peak for name, peak in _peaks(roofs).items()}
    points = _points(_measured(found), t, lambda one: one.intensity, speed, _told(found, t))
    figure = roofline(points, slopes, peaks, words=[t(f"{KEY}.intensity"), t(f"{KEY}.speed")])
    return Panel(figure, t(f"{KEY}.roof"), t(f"{KEY}.roof.note", **vars(where)), wide=True)


def _peaks(roofs: "Roofs") -> Mapping[str, float]:
    return {name: peak for name in SHOWN_DTYPES if (peak := roofs.peak(name)) is not None}


def _scatter(found: "Found", t: Translator) -> Panel:
    def milliseconds_of(one: "Part") -> float:
        took = found.measured(one)
        assert took is not None
        return took.low * 1e3

    told = _told(found, t)
    points = _points(_measured(found), t, milliseconds_of, lambda one: found.predicted(one).seconds * 1e3, told)
    words = [t(f"{KEY}.{name}") for name in ("measured_ms", "predicted_ms", "equal")]
    return Panel(
        part_scatter(points, words=words, band=ALLOWED), t(f"{KEY}.compare"), t(f"{KEY}.compare.note"), wide=True
    )


# ---- tables


def _table(counted: "Counted", found: "Found | None", t: Translator) -> Panel:
    """A row for each part; the columns of times come with the first measurement."""
    names = ["flops", "bytes", "intensity", *(["predicted", "measured", "error", "bound"] if found else [])]
    rows = []
    for one in counted.parts:
        cells = [f"{count(one.flops)}FLOP", megabytes(one.nbytes), significant(one.intensity)]
        took = None if found is None else found.measured(one)
        if found is not None and took is not None:
            predicted, error = found.predicted(one), found.error(one)
            spread = f"{milliseconds(took.low)} ({significant(took.median * 1e3)}–{significant(took.high * 1e3)})"
            cells += [milliseconds(predicted.seconds), spread, signed(error or 0.0), bound(predicted.bound, t)]
        elif found is not None:
            cells += ["–"] * 4
        rows.append((label(one, t), cells))
    html = table(t(f"{KEY}.table"), [t(f"{KEY}.head.{name}") for name in names], rows)
    note = t(f"{KEY}.table.note" if found else f"{KEY}.table.note.formula")
    return Panel(html=html, title=t(f"{KEY}.table"), note=note, wide=True)


def _limits(roofs: "Roofs", where: Where, t: Translator) -> Panel:
    """What the roofs are: bandwidth by working set, throughput by dtype, each with its spread."""
    from tfviz.inference.roofline import peak_probe, read_probes

    rows = []
    for probe in read_probes():
        if probe in roofs.times:
            took = roofs.times[probe]
            speeds = [probe.inner / one for one in (took.low, took.median, took.high)]
            rows.append((t(f"{KEY}.limit.read", size=megabytes(probe.inner)), _spread(speeds, "B/s")))
    for dtype in SHOWN_DTYPES:
        name, probe = t(f"{KEY}.limit.peak", dtype=dtype.upper()), peak_probe(dtype)
        if probe in roofs.times:
            took, flops = roofs.times[probe], 2 * probe.rows * probe.inner * probe.outer
            rows.append((name, _spread([flops / one for one in (took.low, took.median, took.high)], "FLOP/s")))
    heads = [t(f"{KEY}.head.{name}") for name in ("limit", "spread")]
    html = table(t(f"{KEY}.limits"), heads, rows)
    return Panel(html=html, title=t(f"{KEY}.limits"), note=t(f"{KEY}.limits.note", **vars(where)), wide=True)


def _spread(speeds: Sequence[float], unit: str) -> list[str]:
    best, middle, low = (f"{count(one)}{unit}" for one in speeds)
    return [best, f"{low} – {middle}"]


# ---- words


def label(one: "Part", t: Translator) -> str:
    side = "" if one.side == "self" else t(f"{KEY}.side.{one.side}")
    return t(f"{KEY}.row", phase=t(f"{KEY}.phase.{one.phase}"), side=side, part=t(f"{KEY}.part.{one.name}"))


def bound(name: str, t: Translator) -> str:
    return t(f"{KEY}.bound.{name}")


def signed(share: float) -> str:
    """+12.3 %, −4.00 %."""
    sign = "+" if share >= 0 else "\u2212"
    return f"{sign}{significant(abs(100 * share))} %"


def count(n: float) -> str:
    """The number with a decimal prefix, ready for a unit: "6.79 G"."""
    for prefix in ("", "K", "M", "G"):
        if n < 1000:
            return f"{significant(n)} {prefix}"
        n /= 1000
    return f"{significant(n)} T"


def badges(found: "Found", t: Translator) -> list[Badge]:
    """Computed from the times and counts shown: the errors' median, the parts' sum, the counts against the formula."""
    told, counted = [], found.counted
    error = found.median_error
    if error is not None:
        said = {"error": significant(100 * error), "n": len(_measured(found)), "allowed": round(100 * ALLOWED)}
        key = "median" if error <= ALLOWED else "median.busy" if found.busy else "median.over"
        told.append(Badge(_verdict(error <= ALLOWED, found), t(f"{KEY}.badge.{key}", **said)))
    if found.busy:
        moved = {name: significant(100 * found.moved.get(name, 0.0)) for name in ("bandwidth", "throughput")}
        told.append(Badge(None, t(f"{KEY}.badge.busy", held_up=significant(100 * found.held_up), **moved)))
    for phase in counted.phases:
        sums = found.sums(phase.name)
        if sums is None:
            continue
        summed, whole, predicted = sums
        fields = {"phase": t(f"{KEY}.phase.{phase.name}"), "share": significant(100 * summed / whole)}
        fields |= {"whole": milliseconds(whole), "predicted": milliseconds(predicted)}
        told.append(_sum_badge(summed / whole, found, fields, t))
        told.append(Badge(None, t(f"{KEY}.badge.whole", error=signed(predicted / whole - 1), **fields)))
    if counted.formula is not None:
        own = sum(one.flops for one in counted.parts if one.phase == "decode" and one.name != "other")
        same = own == counted.formula
        key = f"{KEY}.badge.flops" if same else f"{KEY}.badge.flops.differ"
        told.append(Badge(same, t(key, counted=f"{own:,}", formula=f"{counted.formula:,}")))
    return told


def _verdict(good: bool, found: "Found") -> bool | None:
    """What is off on a busy machine says nothing: neither good nor bad."""
    return None if not good and found.busy else good


def _sum_badge(share: float, found: "Found", fields: Mapping[str, str], t: Translator) -> Badge:
    """Less than the whole is Python between operators. More cannot be, unless the machine was busy, or an accelerator
    was waited for after each operator, which nobody does in a whole pass."""
    if share < 1 - SUMMED:
        return Badge(None, t(f"{KEY}.badge.sum.python", **fields))
    if share <= 1 + SUMMED:
        return Badge(True, t(f"{KEY}.badge.sum", **fields))
    if found.roofs.device != "cpu":
        return Badge(None, t(f"{KEY}.badge.sum.waited", **fields))
    return Badge(_verdict(False, found), t(f"{KEY}.badge.sum.{'busy' if found.busy else 'more'}", **fields))
