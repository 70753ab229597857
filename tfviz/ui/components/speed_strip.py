"""The speed strip: what each setting of the switches costs for this sentence on this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING

from tfviz.ui.i18n import Translator, megabytes, milliseconds, ratio, significant

if TYPE_CHECKING:
    from tfviz.introspection.workbench import Measurement

KERNELS = ("naive", "flash")
PRECISIONS = {  # tfviz.inference.precision has the same, and brings torch
    "fp32": "FP32",
    "fp16": "FP16",
    "bf16": "BF16",
    "int8_weights": "INT8 w",
    "int8": "INT8",
    "int4": "INT4",
}
Setting = tuple[str, str]  # (kernel, precision)
BASELINE: Setting = ("flash", "fp32")


def precision_label(key: str) -> str:
    """What a person reads for a precision; any key of which nothing is known is its own label."""
    return PRECISIONS.get(key, key.upper())


@dataclass(frozen=True)
class Strip:
    """All that was tried on one sentence; a new sentence or model starts an empty one."""

    trace_id: str = ""
    about: tuple[object, ...] = ()  # model and text
    current: Setting = BASELINE
    rows: Mapping[Setting, "Measurement"] = field(default_factory=dict)
    reasons: Mapping[Setting, str] = field(default_factory=dict)  # why a setting cannot run here
    model: str = ""  # its label
    family: str = ""  # what the second box is for
    lacks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # id of a switch -> option -> why not here

    def with_row(self, setting: Setting, row: "Measurement") -> "Strip":
        return replace(self, rows={**self.rows, setting: row})

    def with_reason(self, setting: Setting, reason: str) -> "Strip":
        return replace(self, reasons={**self.reasons, setting: reason})


def render(strip: Strip, t: Translator, doing: str = "") -> str:
    """The strip as HTML; `doing` says what is being measured right now."""
    baseline = strip.rows.get(BASELINE) or next(iter(strip.rows.values()), None)
    order = [(k, p) for p in PRECISIONS for k in reversed(KERNELS)]
    there = {*strip.rows, *strip.reasons, strip.current}
    shown = [s for s in order if s in there] + sorted(there - set(order))
    body = "".join(_row(s, strip, baseline, t) for s in shown)
    lacking = any(strip.lacks.values())  # page.js greys the switches by it
    lacks = f' data-lacks="{escape(json.dumps(strip.lacks, ensure_ascii=False))}"' if lacking else ""
    status = f'<p class="tv-doing" role="status">{escape(doing)}</p>' if doing else ""
    return (
        f'<table class="tv-speed"{lacks}><caption>{escape(t("speed.caption"))}</caption>'
        f'<thead class="tv-hidden"><tr><th scope="col">{escape(t("speed.setting"))}</th>'
        f'<th scope="col">{escape(t("speed.time"))}</th><th scope="col">{escape(t("speed.ratio"))}</th></tr></thead>'
        f"<tbody>{body}</tbody></table>{status}"
    )


def _row(setting: Setting, strip: Strip, baseline: "Measurement | None", t: Translator) -> str:
    now = ' class="tv-now" aria-current="true"' if setting == strip.current else ""
    name = f"{escape(setting[0])} · {escape(precision_label(setting[1]))}"
    row = strip.rows.get(setting)
    if row is None:
        reason = strip.reasons.get(setting)
        detail = f'<tr class="tv-detail"><td colspan="3">{escape(reason)}</td></tr>' if reason else ""
        return f'<tr{now}><th scope="row">{name}</th><td>…</td><td>…</td></tr>{detail}'
    speed = ratio(baseline.latency.median / row.latency.median) if baseline else ""
    spread = t(
        "speed.spread",
        low=milliseconds(row.latency.low),
        high=milliseconds(row.latency.high),
        runs=row.latency.runs,
    )
    return (
        f'<tr{now}><th scope="row">{name}</th><td title="{escape(spread)}">{milliseconds(row.latency.median)}</td>'
        f"<td>{speed}</td></tr>"
        f'<tr class="tv-detail"><td colspan="3" title="{escape(t("speed.detail.title"))}">'
        f"{escape(_detail(row, t))}</td></tr>"
    )


def _detail(row: "Measurement", t: Translator) -> str:
    parts = [
        t("speed.weights", bytes=megabytes(row.weight_bytes)),
        t("speed.peak", bytes=megabytes(row.peak_bytes)),
        t("speed.apart", value=significant(row.difference.max_abs)),
    ]
    if row.difference.top1 is not None:
        parts.append(t("speed.top1", percent=f"{100 * row.difference.top1:.3g}"))
    return " · ".join(parts)
