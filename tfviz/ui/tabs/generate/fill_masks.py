"""Fill in, encoders: the masked sentence, the ten most probable tokens of each hidden place, and BERT's 15 %."""

from collections.abc import Sequence
from html import escape
from math import exp, fsum, log
from typing import TYPE_CHECKING

import numpy as np

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, percent, percent_of_log, significant
from tfviz.ui.tabs.generate.fill_row import Chip, row

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.filling import Filled, Guess

SAME = rounding.layers()
MOST_CARDS = 24


def picture(found: "Filled", drawn: bool, t: Translator) -> Picture:
    """What was hidden by hand (`drawn` False) or by BERT's procedure, and what the model makes of it."""
    said = [t("generate.fill.renamed", mask=found.mask)] if found.renamed else []
    if not found.guesses:
        said.append(t("generate.fill.none" if found.places else "generate.fill.no_place"))
    note = t("generate.fill.row.drawn" if drawn else "generate.fill.row.hand", mask=found.mask)
    panels = [row(found.tokens, _chips(found), found.places, not drawn, t, note)]
    if drawn and found.guesses:
        panels += [sums(found, t), chosen(found, t)]
    elif found.guesses:
        panels.append(cards(found, t))
        if len(found.guesses) > MOST_CARDS:
            said.append(t("generate.fill.cards.cut", n=MOST_CARDS, all=len(found.guesses)))
    return Picture(panels, badges(found, drawn, t), said)


def _chips(found: "Filled") -> dict[int, Chip]:
    chips = {}
    for guess in found.guesses:
        read = guess.read if guess.kind in {"mask", "random"} else ""
        chips[guess.position] = Chip(guess.kind, read, guess.top[0][0], right(guess))
    return chips


def right(guess: "Guess") -> bool | None:
    """Whether the most probable token is what stood there; None where nobody knows."""
    return None if guess.rank is None else guess.rank == 1


def cards(found: "Filled", t: Translator) -> Panel:
    made = "".join(_card(guess, found.vocabulary, t) for guess in found.guesses[:MOST_CARDS])
    html = f'<div class="tv-fill-cards">{made}</div>'
    return Panel(
        title=t("generate.fill.cards"),
        html=html,
        note=t("generate.fill.cards.note", n=len(found.guesses[0].top)),
        wide=True,
    )


def _card(guess: "Guess", vocabulary: int, t: Translator) -> str:
    """One hidden place: its bars, then the truth if they leave it out, then the entropy."""
    bars = [_bar(label, chance, guess.rank == n) for n, (label, chance) in enumerate(guess.top, start=1)]
    lines = []
    if guess.rank is not None and guess.log_prob is not None:
        said = {"token": str(guess.truth), "p": percent_of_log(guess.log_prob), "rank": f"{guess.rank:,}"}
        lines.append(t("generate.fill.truth", **said))
    most = significant(log(vocabulary))
    lines.append(t("generate.fill.entropy", h=significant(guess.entropy), most=most, n=significant(exp(guess.entropy))))
    head = escape(t("generate.fill.card", position=guess.position))
    hidden = "" if guess.truth is None else f" <bdi>{escape(guess.truth)}</bdi>"
    told = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<section class="tv-fill-card"><h4>{head}{hidden}</h4><ol>{"".join(bars)}</ol>{told}</section>'


def _bar(label: str, chance: float, true: bool) -> str:
    bar = f'<span class="tv-fill-bar"><i style="--part:{chance:.4f}"></i></span>'
    return (
        f'<li{" class=true" if true else ""}><bdi dir="auto">{escape(label)}</bdi>{bar}'
        f"<span>{escape(percent(chance))}</span></li>"
    )


def known(found: "Filled") -> list["Guess"]:
    return [guess for guess in found.guesses if guess.log_prob is not None]


def sums(found: "Filled", t: Translator) -> Panel:
    """How many were chosen, what became of them, and how the model did."""
    of = {kind: sum(guess.kind == kind for guess in found.guesses) for kind in ("mask", "random", "kept")}
    chosen, n_right = len(known(found)), sum(guess.rank == 1 for guess in found.guesses)
    uniform = significant(log(found.vocabulary))
    figures = [
        (f"{chosen} / {len(found.places)}", t("generate.fill.sum.chosen", share=percent(chosen / len(found.places)))),
        (f"{of['mask']} · {of['random']} · {of['kept']}", t("generate.fill.sum.fates", mask=found.mask)),
        (f"{significant(found.loss or 0)}", t("generate.fill.sum.loss", uniform=uniform)),
        (f"{n_right} / {chosen}", t("generate.fill.sum.right")),
    ]
    html = "".join(f"<div><b>{escape(number)}</b><span>{escape(what)}</span></div>" for number, what in figures)
    return Panel(html=f'<div class="tv-fill-sums">{html}</div>', wide=True)


def chosen(found: "Filled", t: Translator) -> Panel:
    """Every chosen place: its fate, what the model says, and its share of the loss."""
    heads = [t(f"generate.fill.head.{name}") for name in ("fate", "read", "guess", "p", "rank", "loss")]
    rows = [(f"{guess.position} {guess.truth}", _cells(guess, t)) for guess in known(found)]
    html = table(t("generate.fill.chosen"), heads, rows)
    return Panel(title=t("generate.fill.chosen"), html=html, note=t("generate.fill.chosen.note"), wide=True)


def _cells(guess: "Guess", t: Translator) -> Sequence[str]:
    assert guess.log_prob is not None, guess
    label, chance = guess.top[0]
    return (
        t(f"generate.fill.fate.{guess.kind}"),
        guess.read,
        f"{label} {percent(chance)}",
        percent_of_log(guess.log_prob),
        f"{guess.rank:,}",
        significant(-guess.log_prob),
    )


def badges(found: "Filled", drawn: bool, t: Translator) -> list[Badge]:
    made = []
    if found.guesses:
        off = max(abs(guess.total - 1) for guess in found.guesses)
        made.append(Badge(off <= SAME, t("generate.fill.badge.total", n=f"{found.vocabulary:,}", off=significant(off))))
    changed = set(np.flatnonzero(found.given != found.read).tolist())
    others = len(found.given) - len({guess.position for guess in found.guesses})
    stray = changed - {guess.position for guess in found.guesses}
    made.append(Badge(not stray, t("generate.fill.badge.same", n=others, off=len(stray))))
    if drawn and found.guesses:
        n = {kind: sum(_met(guess, found) for guess in found.guesses if guess.kind == kind) for kind in FATES}
        made.append(Badge(_as_drawn(found), t("generate.fill.badge.fates", **n, all=len(known(found)))))
    if known(found) and found.loss is not None:
        mean = -fsum(guess.log_prob or 0 for guess in known(found)) / len(known(found))
        off = abs(mean - found.loss)
        made.append(Badge(off <= SAME * max(1, mean), t("generate.fill.badge.loss", off=significant(off))))
    return made


FATES = ("mask", "random", "kept")


def _met(guess: "Guess", found: "Filled") -> bool:
    """Whether the ids that were read there are what its fate says."""
    read, given = int(found.read[guess.position]), int(found.given[guess.position])
    return {"mask": read == found.mask_id, "kept": read == given, "random": read != found.mask_id}[guess.kind]


def _as_drawn(found: "Filled") -> bool:
    """15 % of the places, one at least, and at each the fate that it was given."""
    of_text = known(found)
    return len(of_text) == max(1, round(0.15 * len(found.places))) and all(_met(guess, found) for guess in of_text)
