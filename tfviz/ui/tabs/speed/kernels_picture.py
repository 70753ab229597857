"""A sweep over kernels as a picture: curves with their exponents, claims beside this machine's figures, badges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.speed_kernels import kernel_gains, kernel_memory, kernel_times
from tfviz.ui.components.picture import Panel, Picture, table
from tfviz.ui.i18n import Translator, megabytes, milliseconds, ratio, significant
from tfviz.ui.tabs.speed.kernels_checks import badges, both, crossing_of, fit_of, measured, of

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.experiments.kernel_sweep import Refusal, Sweep
    from tfviz.introspection.experiments.kernels import KernelPoint, KernelSetting

NONE = "–"


def picture(
    found: "Sweep", base: "KernelSetting", where: Mapping[str, Any], t: Translator, part: float | None = None
) -> Picture:
    """What has been measured; before that the formula alone. `base` is what the controls say now."""
    notes = [*_notes(found, base, where, t, part), *(refusal(one, t) for one in _first(found.refused))]
    numbers = _table(found, base, t)
    if not found.points:
        return Picture([_memory(found, base, t), numbers], notes=notes, part=part)
    panels = [_times(found, where, t), _memory(found, base, t)]
    if len(both(found)) > 1:
        panels += [_gains(found, t), Panel(html=_claims(found, t), title=t("speed.kernels.claims"))]
    return Picture([*panels, numbers], badges(found, t) if part is None else (), notes, part)


def _notes(
    found: "Sweep", base: "KernelSetting", where: Mapping[str, Any], t: Translator, part: float | None
) -> list[str]:
    from tfviz.introspection.experiments.kernel_sweep import BUDGET

    if part is not None:
        return []
    if not found.points:
        return [t("speed.kernels.ready", largest=f"{base.n:,}", budget=round(BUDGET), **where)]
    last = f"{found.points[-1].setting.n:,}"
    if found.part < 1:
        return [t("speed.kernels.stopped", n=last)]
    return [t("speed.kernels.other_largest", n=f"{found.base.n:,}")] if found.base.n != base.n else []


def _first(refused: Sequence["Refusal"]) -> list["Refusal"]:
    """Of each kernel the refusal at its smallest size: the larger ones follow from it."""
    return [one for one in refused if all(other.n >= one.n for other in refused if other.kernel == one.kernel)]


def refusal(one: "Refusal", t: Translator) -> str:
    fields: dict[str, str] = {"kernel": t(f"speed.kernels.{one.kernel}"), "n": f"{one.n:,}", "words": one.words}
    if one.why == "memory":
        fields |= {"need": megabytes(one.need), "limit": megabytes(one.limit)}
    elif one.why == "time":
        fields |= {"need": f"{significant(one.need)} s", "limit": f"{significant(max(one.limit, 0))} s"}
    return t(f"speed.kernels.refused.{one.why}", **fields)


# ---- figures


def _sizes(points: Sequence["KernelPoint"]) -> np.ndarray:
    return np.array([one.setting.n for one in points], dtype=np.int64)


def _names(found: "Sweep", t: Translator) -> dict[str, str]:
    return {kernel: t(f"speed.kernels.{kernel}") for kernel in found.kernels}


def _lines(found: "Sweep", what: str, unit: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    lines = {}
    for kernel in measured(found):
        line = fit_of(found, kernel, what)
        if line is not None:
            used = np.array(line.used)
            lines[kernel] = used, (line.factor * used.astype(float) ** line.exponent / unit).astype(np.float32)
    return lines


def _times(found: "Sweep", where: Mapping[str, Any], t: Translator) -> Panel:
    drawn = {}
    for kernel in measured(found):
        took = [one.latency[kernel] for one in of(found, kernel)]
        spread = np.array([(one.low, one.median, one.high) for one in took], dtype=np.float32).T * 1e3
        drawn[kernel] = _sizes(of(found, kernel)), spread
    words = [t("speed.kernels.n"), t("speed.kernels.ms"), t("speed.kernels.equal")]
    lines = _lines(found, "time", 1e-3)
    figure = kernel_times(drawn, lines, crossing_of(found), names=_names(found, t), words=words)
    note = f"{_exponents(found, 'time', t)} {t('speed.kernels.where', **where)}"
    return Panel(figure, t("speed.kernels.time"), note.strip())


def _memory(found: "Sweep", base: "KernelSetting", t: Translator) -> Panel:
    from tfviz.introspection.experiments.kernel_sweep import lengths
    from tfviz.introspection.experiments.kernels import naive_bytes

    sizes = lengths(max(base.n, found.base.n) if found.points else base.n)
    formula = np.array([naive_bytes(replace(base, n=n)) for n in sizes], dtype=np.float32) / 2**20
    drawn = {}
    for kernel in measured(found):
        peaks = np.array([one.peak_bytes[kernel] for one in of(found, kernel)], dtype=np.float32) / 2**20
        drawn[kernel] = _sizes(of(found, kernel)), peaks
    limit = None if found.limit is None or formula[-1] < found.limit / 2**22 else found.limit / 2**20
    words = [t(f"speed.kernels.{word}") for word in ("n", "mib", "formula", "limit")]
    lines = _lines(found, "memory", 2**20)
    figure = kernel_memory((np.array(sizes), formula), drawn, lines, limit, names=_names(found, t), words=words)
    note = _exponents(found, "memory", t) or t("speed.kernels.memory.note")
    return Panel(figure, t("speed.kernels.memory"), note)


def _gains(found: "Sweep", t: Translator) -> Panel:
    pairs = both(found)
    speed = np.array([one.latency["naive"].median / one.latency["flash"].median for one in pairs], dtype=np.float32)
    memory = np.array([one.peak_bytes["naive"] / one.peak_bytes["flash"] for one in pairs], dtype=np.float32)
    words = [t(f"speed.kernels.{word}") for word in ("n", "gain", "gain.time", "gain.memory", "equal")]
    figure = kernel_gains(_sizes(pairs), speed, memory, crossing_of(found), words=words)
    return Panel(figure, t("speed.kernels.gains"), t("speed.kernels.gains.note"))


def _exponents(found: "Sweep", what: str, t: Translator) -> str:
    """ "naive as n^2.00, flash as n^0.94", over the sizes that the fit used."""
    fits = {kernel: fit_of(found, kernel, what) for kernel in measured(found)}
    said = [
        t("speed.kernels.fit.one", kernel=t(f"speed.kernels.{kernel}"), exponent=f"{line.exponent:.2f}")
        for kernel, line in fits.items()
        if line is not None
    ]
    return t(f"speed.kernels.fit.{what}", fits=t("speed.kernels.comma").join(said)) if said else ""


# ---- numbers


def _claims(found: "Sweep", t: Translator) -> str:
    """The article's three sentences on flash attention, what they should say, and what was measured here."""
    pairs = both(found)
    gains = [one.latency["naive"].median / one.latency["flash"].median for one in pairs]
    apart = max((one.max_abs["flash"] for one in pairs if "flash" in one.max_abs), default=float("nan"))
    speed = f"{ratio(min(gains))} – {ratio(max(gains))}"
    powers = {what: [fit_of(found, kernel, what) for kernel in ("naive", "flash")] for what in ("memory", "time")}
    said = {
        what: " → ".join(NONE if one is None else f"n^{one.exponent:.2f}" for one in powers[what]) for what in powers
    }
    here = {"speed": speed, **said, "equal": f"± {significant(apart)}"}
    cards = "".join(
        f"<div><dt>{escape(t(f'speed.kernels.claim.{one}'))}</dt>"
        f'<dd class="here">{escape(figure)}</dd>'
        f'<dd class="right">{escape(t(f"speed.kernels.claim.{one}.right"))}</dd></div>'
        for one, figure in here.items()
    )
    return f'<dl class="tv-kern-claims">{cards}</dl>'


def _table(found: "Sweep", base: "KernelSetting", t: Translator) -> Panel:
    """A row for each size: the formula at first, what was measured beside it later."""
    from tfviz.introspection.experiments.kernel_sweep import lengths
    from tfviz.introspection.experiments.kernels import naive_bytes

    points, flex = {one.setting.n: one for one in found.points}, "flex" in measured(found)
    names = ["cells", "formula"]
    if points:
        extra = ["flex"] if flex else []
        names = ["naive", "flash", *extra, "speed", "naive_memory", "formula", "flash_memory"]
        names += [*(f"{one}_memory" for one in extra), "memory", "apart"]
        names += [*(["gradients"] if base.backward else []), "backend"]
    rows = []
    for n in sorted({*lengths(base.n), *points}):
        cells = {"cells": f"{n * n:,}", "formula": megabytes(naive_bytes(replace(base, n=n)))}
        cells |= _cells(points[n], t) if n in points else {}
        rows.append((f"n\u00a0=\u00a0{n:,}", [cells.get(name, NONE) for name in names]))
    heads = [t(f"speed.kernels.head.{name}") for name in names]
    note = t("speed.kernels.table.note" if points else "speed.kernels.table.note.formula")
    html = table(t("speed.kernels.table"), heads, rows)
    return Panel(html=html, title=t("speed.kernels.table"), note=note, wide=bool(points))


def _cells(one: "KernelPoint", t: Translator) -> dict[str, str]:
    cells = {kernel: _spread(took) for kernel, took in one.latency.items()}
    cells |= {f"{kernel}_memory": megabytes(peak) for kernel, peak in one.peak_bytes.items()}
    if {"naive", "flash"} <= one.latency.keys():
        cells["speed"] = ratio(one.latency["naive"].median / one.latency["flash"].median)
        cells["memory"] = ratio(one.peak_bytes["naive"] / one.peak_bytes["flash"])
    for name, apart in (("apart", one.max_abs), ("gradients", one.gradient_abs)):
        if apart:
            cells[name] = significant(max(apart.values()))
    if "flash" in one.backend:
        cells["backend"] = t(f"speed.kernels.backend.{one.backend['flash']}")
    return cells


def _spread(took: Any) -> str:
    return f"{milliseconds(took.median)} ({significant(took.low * 1e3)}–{significant(took.high * 1e3)})"
