"""Speed, results: everything measured since tfviz started, to be taken along, and beside another machine's file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.speed_results import gain_dots
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.i18n import Translator, megabytes, milliseconds, ratio, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.records import Machine, Record
    from tfviz.introspection.comparison import Comparison, Match

KEY = "speed.results"
PARTS = ("kernels", "precision", "quantisation", "roofline", "memory", "recurrent", "claims")  # that measure
SHOWN = 150  # rows of one experiment's table, and of the comparison's
WORDS = "export refresh compare drop choose remove large unread nothing".split()
FORMATS = ("json", "csv", "markdown")
UNITS = {
    "FLOP/s": ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"),
    "B/s": ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"),
}


def draw(scene: Scene, ask: Mapping[str, Any]) -> Picture:
    from tfviz.inference.records import machine
    from tfviz.introspection.comparison import compare
    from tfviz.introspection.export import BadFile, read, sound

    here = machine(scene.bench.resident.device)
    every = scene.bench.results.records()
    records, error = sound(every), ""
    there, found = None, None
    for text in (ask.get("file"), ask.get("last")):  # what was compared before stays if this cannot be read
        if not isinstance(text, str) or not text:
            continue
        try:
            there, others = read(text)
        except BadFile as bad:
            error = error or bad.in_language(scene.t.language)
        else:
            found = compare(records, others)
            break
    return picture(here, records, scene.t, there, found, error, len(every) - len(records))


def picture(
    here: "Machine",
    records: Sequence["Record"],
    t: Translator,
    there: "Machine | None" = None,
    found: "Comparison | None" = None,
    error: str = "",
    left_out: int = 0,
) -> Picture:
    """The files and the place for another one; the comparison, if there is one; the figures by experiment."""
    notes = [t(f"{KEY}.left_out", n=left_out)] if left_out else []
    panels = [_files(here, records, t, error, there is not None)]
    told = badges(here, records, t)
    if there is not None and found is not None:
        panels += _compared(here, there, found, t)
        told += _counted(found, records, t)
    panels.append(_figures(records, t) if records else _empty(t))
    return Picture(panels, told, notes)


# ---- panels


def _files(here: "Machine", records: Sequence["Record"], t: Translator, error: str, compared: bool) -> Panel:
    from tfviz.introspection.export import MOST_BYTES, to_csv, to_json, to_markdown

    texts = {}
    if records:
        texts = {"json": to_json(here, records), "csv": to_csv(here, records), "markdown": to_markdown(here, records)}
    data = {
        "files": texts,
        "error": error,
        "compared": compared,
        "most": MOST_BYTES,
        "count": t(f"{KEY}.count", n=f"{len(records):,}"),
        "words": {word: t(f"{KEY}.{word}", most=MOST_BYTES // 1_000_000) for word in WORDS},
    }
    return Panel(view="results", data=data, wide=True, note="" if compared else _machine_line(here, t))


def _machine_line(machine: "Machine", t: Translator) -> str:
    told = [f"{t(f'{KEY}.machine.{name}')} {value}" for name, value in asdict(machine).items() if value is not None]
    return f"{t(f'{KEY}.here')}: {', '.join(told)}"


def _machine_rows(machines: Sequence["Machine"], t: Translator) -> list[tuple[str, list[str]]]:
    told = [asdict(one) for one in machines]
    return [
        (t(f"{KEY}.machine.{name}"), ["–" if one[name] is None else str(one[name]) for one in told]) for name in told[0]
    ]


def _empty(t: Translator) -> Panel:
    """What to measure first, with the way there."""
    buttons = "".join(
        f'<button type="button" data-tab="speed" data-section="speed.{part}">{escape(t(f"speed.{part}.name"))}</button>'
        for part in PARTS
    )
    html = f'<p>{escape(t(f"{KEY}.empty"))}</p><div class="tv-results-links">{buttons}</div>'
    return Panel(html=f'<div class="tv-results-empty">{html}</div>', wide=True)


def _figures(records: Sequence["Record"], t: Translator) -> Panel:
    """A table an experiment, in the order in which they were measured."""
    by_name: dict[str, list[Record]] = {}
    for one in records:
        by_name.setdefault(one.experiment, []).append(one)
    html = "".join(_experiment(name, rows, t) for name, rows in by_name.items())
    return Panel(html=f'<div class="tv-results">{html}</div>', title=t(f"{KEY}.figures"), wide=True)


def _experiment(name: str, records: Sequence["Record"], t: Translator) -> str:
    from tfviz.introspection.export import said

    heads = [t(f"{KEY}.head.{one}") for one in ("value", "quartiles", "runs", "when")]
    rows = [
        (_quantity(one, t), said(one.setting), [shown(one.value, one.unit), _quartiles(one), _runs(one), _when(one.at)])
        for one in records[:SHOWN]
    ]
    title = f"{_name(name, t)} · {t(f'{KEY}.count', n=f'{len(records):,}')}"
    more = len(records) - SHOWN
    rest = f'<p class="tv-soft">{escape(t(f"{KEY}.more", n=f"{more:,}"))}</p>' if more > 0 else ""
    opened = f"<details open><summary>{escape(title)}</summary>"
    return f"{opened}{listing(title, heads, rows)}{rest}</details>"


def _name(experiment: str, t: Translator) -> str:
    return t(f"speed.{experiment}.name") if experiment in PARTS else experiment


def _group(one: "Record", t: Translator) -> str:
    return f"{_name(one.experiment, t)} · {_quantity(one, t)}"


def listing(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """A table of (what it is, of which setting, cells): the setting stands small below. Everything is escaped."""
    head = "".join(f'<th scope="col">{escape(word)}</th>' for word in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}<small>{escape(setting)}</small></th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, setting, cells in rows
    )
    said_aloud = f'<caption class="tv-hidden">{escape(caption)}</caption>'
    whole = f'<table class="tv-table">{said_aloud}<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="tv-scroll" tabindex="0" role="group" aria-label="{escape(caption)}">{whole}</div>'


def _quantity(one: "Record", t: Translator) -> str:
    key = f"{KEY}.quantity.{one.quantity}"
    return t(key) if t.has(key) else one.quantity.replace("_", " ")


def shown(value: float, unit: str) -> str:
    """With its unit, in the size that reads best: 12.3 ms, 4.00 MiB, 95.1 GFLOP/s."""
    if unit == "s":
        return f"{significant(value)} s" if abs(value) >= 1 else milliseconds(value)
    if unit == "B":
        return megabytes(value)
    if unit in UNITS:
        power = 0
        while abs(value) >= 1000 and power < len(UNITS[unit]) - 1:
            value, power = value / 1000, power + 1
        return f"{significant(value)} {UNITS[unit][power]}"
    return _number(value) if unit == "1" else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return significant(value) if abs(value) < 1e9 else f"{value:.2e}".replace("e+", "e")


def _quartiles(one: "Record") -> str:
    return "" if one.low is None or one.high is None else f"{shown(one.low, one.unit)} – {shown(one.high, one.unit)}"


def _runs(one: "Record") -> str:
    return "" if one.runs is None else f"{one.runs:,}"


def _when(at: str) -> str:
    try:
        return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return at


# ---- two machines


def _compared(here: "Machine", there: "Machine", found: "Comparison", t: Translator) -> list[Panel]:
    heads = [t(f"{KEY}.here"), t(f"{KEY}.there")]
    machines = table(t(f"{KEY}.machines"), heads, _machine_rows([here, there], t))
    panels = [Panel(html=machines, title=t(f"{KEY}.machines"), wide=True)]
    gains = gains_of(found.matched, t)
    if gains:
        figure = gain_dots(gains, words=[t(f"{KEY}.gain"), t(f"{KEY}.equal")])
        panels.append(Panel(figure, t(f"{KEY}.gains"), t(f"{KEY}.gains.note"), wide=True))
    html = _matches(found.matched, t) + _unmatched(found, t)
    return [*panels, Panel(html=f'<div class="tv-results">{html}</div>', title=t(f"{KEY}.rows"), wide=True)]


def gains_of(matched: Sequence["Match"], t: Translator) -> dict[str, tuple[list[str], np.ndarray]]:
    """By experiment and quantity, of the rows where one machine can be the better one."""
    from tfviz.introspection.export import said

    rows: dict[str, list[tuple[str, float]]] = {}
    for one in matched:
        if one.gain is not None:
            rows.setdefault(_group(one.here, t), []).append((said(one.here.setting), one.gain))
    return {group: ([label for label, _ in of], np.array([gain for _, gain in of])) for group, of in rows.items()}


def _matches(matched: Sequence["Match"], t: Translator) -> str:
    from tfviz.introspection.export import said

    if not matched:
        return f'<p class="tv-soft">{escape(t(f"{KEY}.none"))}</p>'
    heads = [t(f"{KEY}.{one}") for one in ("here", "there", "ratio", "better")]
    rows = []
    for one in matched[:SHOWN]:
        mine, other = one.here, one.there
        values = [shown(mine.value, mine.unit), shown(other.value, other.unit)]
        compared = "–" if one.ratio is None else ratio(one.ratio)
        rows.append((_group(mine, t), said(mine.setting), [*values, compared, _better(one, t)]))
    more = len(matched) - SHOWN
    rest = f'<p class="tv-soft">{escape(t(f"{KEY}.more", n=f"{more:,}"))}</p>' if more > 0 else ""
    return listing(t(f"{KEY}.rows"), heads, rows) + rest


def _better(one: "Match", t: Translator) -> str:
    if one.gain is None:
        return "–"
    if f"{one.gain:.2f}" == "1.00":
        return t(f"{KEY}.equal")
    return t(f"{KEY}.better.{'here' if one.gain > 1 else 'there'}", ratio=ratio(max(one.gain, 1 / one.gain)))


def _unmatched(found: "Comparison", t: Translator) -> str:
    """What only one of them has measured, folded away."""
    from tfviz.introspection.export import said

    parts = []
    for side, records in (("here", found.only_here), ("there", found.only_there)):
        if records:
            title = t(f"{KEY}.only.{side}", n=f"{len(records):,}")
            rows = [(_group(one, t), said(one.setting), [shown(one.value, one.unit)]) for one in records[:SHOWN]]
            html = listing(title, [t(f"{KEY}.head.value")], rows)
            parts.append(f"<details><summary>{escape(title)}</summary>{html}</details>")
    return "".join(parts)


# ---- what was checked


def badges(here: "Machine", records: Sequence["Record"], t: Translator) -> list[Badge]:
    """Both files, read again, hold the figures that are shown."""
    from tfviz.introspection.export import from_csv, from_json, to_csv, to_json

    if not records:
        return []
    same = {
        "JSON": from_json(to_json(here, records)) == (here, list(records)),
        "CSV": from_csv(to_csv(here, records)) == (here, list(records)),
    }
    wrong = " ".join(name for name, holds in same.items() if not holds)
    said_so = t(f"{KEY}.badge.{'differ' if wrong else 'same'}", files=wrong, n=f"{len(records):,}")
    return [Badge(not wrong, said_so)]


def _counted(found: "Comparison", records: Sequence["Record"], t: Translator) -> list[Badge]:
    numbers = [len(found.matched), len(found.only_here), len(found.only_there)]
    fields = dict(zip(("both", "here", "there"), (f"{one:,}" for one in numbers), strict=True))
    return [Badge(None, t(f"{KEY}.badge.matched", **fields))]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.records import Machine, Record
    from tfviz.introspection.comparison import compare
    from tfviz.introspection.export import to_csv, to_json

    return Record, Machine, to_json, to_csv, compare


SECTION = Section(key=KEY, draw=draw, needs_trace=False, asks=True, code=code)
