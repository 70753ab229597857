"""Fill in, T5: what the encoder reads, what the decoder should write, what it writes, and that put into the gaps."""

from collections.abc import Mapping, Sequence
from html import escape
from math import fsum, log
from typing import TYPE_CHECKING

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, percent, significant
from tfviz.ui.tabs.generate.fill_row import Chip, row

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.spans import Spans

SAME = rounding.layers()
MOST_SHOWN = 16  # tokens of an answer in the table; the line above it has all of them


def picture(found: "Spans", drawn: bool, t: Translator) -> Picture:
    """The gaps of hand (`drawn` False) or of T5's draw, and what the model writes into them."""
    said = [t("generate.fill.renamed", mask="<extra_id_0>")] if found.renamed else []
    if not found.gaps:
        said.append(t("generate.fill.none" if found.places else "generate.fill.no_place"))
    note = t("generate.fill.row.spans.drawn" if drawn else "generate.fill.row.spans.hand")
    panels = [row(found.tokens, _chips(found), found.places, not drawn, t, note)]
    if found.gaps:
        panels += [lines(found, t), answers(found, t)]
    return Picture(panels, badges(found, t) if found.gaps else (), said)


def _chips(found: "Spans") -> dict[int, Chip]:
    chips = {}
    for gap, (start, stop) in enumerate(found.gaps):
        mark = found.labels[found.sentinels[gap]]
        answer, known = found.answers.get(gap), gap not in found.typed
        for i in range(start, stop):
            first = i == start
            said = _joined(answer[:3], found.labels) if first and answer else ""
            right = answer == found.given[start:stop] if first and known else None
            chips[i] = Chip("mask" if known else "typed", mark if first and known else "", said, right)
    return chips


def lines(found: "Spans", t: Translator) -> Panel:
    """Four texts, token by token."""
    shown = [("reads", _line(found.source, found)), ("writes", _line(found.written, found)), ("whole", _whole(found))]
    if found.target:
        shown.insert(1, ("should", _line(found.target, found, found.target_probs)))
    html = "".join(f"<dt>{escape(t(f'generate.fill.spans.{name}'))}</dt><dd>{line}</dd>" for name, line in shown)
    note = t(f"generate.fill.spans.{'note' if found.target else 'unknown'}", n=found.most_written)
    if found.loss is not None:
        note += " " + t("generate.fill.spans.loss", loss=significant(found.loss), uniform=significant(_uniform(found)))
    return Panel(title=t("generate.fill.spans"), html=f'<dl class="tv-fill-lines">{html}</dl>', note=note, wide=True)


def _uniform(found: "Spans") -> float:
    return log(found.vocabulary)


def _line(ids: Sequence[int], found: "Spans", probs: Sequence[float] = ()) -> str:
    below = [f"<small>{escape(percent(one))}</small>" for one in probs] or [""] * len(ids)
    return "".join(_chip(one, found, small) for one, small in zip(ids, below, strict=True))


def _chip(one: int, found: "Spans", below: str = "", kind: str = "") -> str:
    kind = kind or ("mark" if one in found.sentinels else "")
    return f'<span class="tv-fill-chip {kind}"><bdi dir="auto">{escape(found.labels[one])}</bdi>{below}</span>'


def _whole(found: "Spans") -> str:
    """What was read, with the answers in its gaps; a gap that was not answered keeps its sentinel."""
    parts, filled = [], found.answers
    for one in found.source:
        gap = found.sentinels.index(one) if one in found.sentinels else None
        if gap is None or gap not in filled:
            parts.append(_chip(one, found))
        else:
            parts += [_chip(part, found, kind="filled") for part in filled[gap]]
    return "".join(parts)


def answers(found: "Spans", t: Translator) -> Panel:
    """Gap by gap: what was there and what the model wrote."""
    heads = [t(f"generate.fill.spans.{name}") for name in ("truth", "answer", "same")]
    rows = [(found.labels[found.sentinels[gap]], _cells(gap, found, t)) for gap in range(len(found.gaps))]
    return Panel(title=t("generate.fill.gaps"), html=table(t("generate.fill.gaps"), heads, rows), wide=True)


def _cells(gap: int, found: "Spans", t: Translator) -> Sequence[str]:
    start, stop = found.gaps[gap]
    truth, answer = found.given[start:stop], found.answers.get(gap)
    said = t("generate.fill.spans.nothing") if answer is None else _joined(answer, found.labels)
    if gap in found.typed:
        return "?", said, "?"
    return _joined(truth, found.labels), said, t(f"generate.fill.spans.{'yes' if answer == truth else 'no'}")


def _joined(ids: Sequence[int], labels: Mapping[int, str]) -> str:
    return " ".join(labels[one] for one in ids[:MOST_SHOWN]) + (" …" if len(ids) > MOST_SHOWN else "") or "∅"


def badges(found: "Spans", t: Translator) -> list[Badge]:
    from tfviz.introspection.spans import pieces, restore

    made = []
    if found.target:
        back = restore(found.source, pieces(found.target[:-1], found.sentinels), found.sentinels)
        made.append(Badge(tuple(back) == found.given, t("generate.fill.badge.back")))
    marks = [one for one in found.source if one in found.sentinels]
    gone = sum(stop - start for start, stop in found.gaps)
    whole = len(found.source) == len(found.given) - gone + len(found.gaps)
    in_order = tuple(marks) == found.sentinels[:-1] and whole
    made.append(Badge(in_order, t("generate.fill.badge.marks", n=len(marks), gone=gone)))
    if found.totals:
        off = max(abs(one - 1) for one in found.totals)
        made.append(Badge(off <= SAME, t("generate.fill.badge.total", n=f"{found.vocabulary:,}", off=significant(off))))
    if found.loss is not None:
        mean = -fsum(log(one) for one in found.target_probs) / len(found.target_probs)
        off = abs(mean - found.loss)
        made.append(Badge(off <= SAME * max(1, mean), t("generate.fill.badge.target_loss", off=significant(off))))
    return made
