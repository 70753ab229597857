"""Positions tab, this model: the facts, pictures and checks of each way in which positions enter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.positions import Mark, position_curves, signed_heatmap
from tfviz.ui.components.picture import Badge, Panel
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.positions.common import thinned, thinned_note, tolerance

if TYPE_CHECKING:
    from tfviz.introspection.position_checks import Turn
    from tfviz.introspection.positions import PositionsSeen
    from tfviz.introspection.trace import LayerAttention
    from tfviz.sources.positions import Angles, Buckets, Table

Rows = list[tuple[str, Sequence[str]]]
Part = tuple[Rows, list[Panel], list[Badge]]
SHOWN_SLOPES = 4
HALVES = {2.0**-power: f"1/{2**power}" for power in range(1, 9)}  # ticks of the slopes
FAR = 160  # distances of a bias that is shown on both sides


@dataclass(frozen=True)
class Looked:
    """What one drawing is about: a layer's attention, its tokens, and what was found out about it."""

    model: str
    precision: str
    seen: "PositionsSeen"
    kind: str
    layer: int
    head: int
    attention: "LayerAttention"
    tokens: Sequence[str]
    turn: "Turn | None" = None  # None: no angles, or nothing to compare with
    reason: str = ""  # why nothing was compared


# ---- added to the embeddings


def added(looked: Looked, found: "Table", t: Translator) -> Part:
    from tfviz.introspection.position_checks import sinusoid_layout

    layout, added = sinusoid_layout(found), looked.seen.added.get(looked.kind)
    scheme = "sinusoidal" if layout else "learned"
    first, n = (added.first if added else 0), len(looked.tokens)
    rows: Rows = [
        (t("positions.scheme"), [t(f"positions.scheme.{scheme}")]),
        (t("positions.this.enters"), [t("positions.enters.added")]),
        (t("positions.this.size"), [f"{found.positions:,} × {found.rows.shape[1]:,}"]),
        (t("positions.this.weights"), [found.name or t("positions.this.formula")]),
    ]
    if layout:
        rows.append((t("positions.this.layout"), [t(f"positions.layout.{layout[0]}")]))
    text = found.rows[first : first + n]
    badges = []
    if added is not None:
        ok = added.difference <= tolerance(looked.precision) * added.largest
        last = first + n - 1
        said = t("positions.this.added", first=first, last=last, difference=significant(added.difference))
        badges.append(Badge(ok, said))
    return rows, [_text_panel(text, looked, t), _table_panel(found, t)], badges


def _text_panel(values: np.ndarray, looked: Looked, t: Translator, words: str = "dimension") -> Panel:
    """One row for each token of the text."""
    tokens = looked.tokens[: len(values)]
    cells, _, columns, (high, wide) = thinned(values)
    shown = tokens if high == 1 else None
    names = (t("positions.token"), t(f"positions.{words}"))
    figure = signed_heatmap(cells, rows=shown, column_numbers=columns, limit=_most(cells), words=names)
    note = f"{t(f'positions.this.text.{words}')} {thinned_note((high, wide), t)}"
    return Panel(figure, title=t("positions.this.text"), note=note.strip())


def _most(cells: np.ndarray) -> float | None:
    """Full colour for all but the largest: a few of them would leave the others white."""
    return float(np.quantile(np.abs(cells), 0.99)) or None


def _table_panel(found: "Table", t: Translator) -> Panel:
    rows = found.rows
    cells, positions, dimensions, step = thinned(rows)
    figure = signed_heatmap(
        cells,
        row_numbers=positions,
        column_numbers=dimensions,
        limit=_most(cells),
        words=(t("positions.position"), t("positions.dimension")),
    )
    note = (
        f"{t('positions.this.table.note' if found.name else 'positions.encoding.sinusoidal')} {thinned_note(step, t)}"
    )
    return Panel(figure, title=t("positions.this.table", n=f"{len(rows):,}"), note=note.strip(), wide=True)


# ---- turning q and k


def turned(looked: Looked, t: Translator) -> Part:
    from tfviz.introspection.position_curves import wavelengths

    facts, turn = looked.seen.facts, looked.turn
    dim = looked.attention.query.shape[-1]
    own = turn.angles if turn is not None else None
    said = own or next(iter(facts.angles_of(looked.layer, dim)), facts.angles[0])
    pairs = (turn.pairs if turn is not None else "") or said.pairs
    waves, n_pairs = wavelengths(said.theta[said.turning]), len(said.theta)
    n_turned, still = 2 * len(waves), n_pairs - len(waves)
    dims = t("positions.this.dims.of", n=n_turned, of=dim)
    rows: Rows = [
        (t("positions.scheme"), [t("positions.scheme.rope")]),
        (t("positions.this.enters"), [t("positions.enters.turned")]),
        (t("positions.base"), [_base(said)]),
        (t("positions.this.dims"), [f"{dims} {t('positions.this.dims.still', n=still)}" if still else dims]),
        (t("positions.this.pairs"), [t(f"positions.pairs.{pairs}", half=n_pairs) if pairs else "?"]),
        (t("positions.this.waves.range"), [f"{significant(waves[0])} … {significant(waves[-1])}"]),
        (t("positions.this.scaling"), [_scaling(said, t)]),
    ]
    if said.scaling != "default" or said.grown != 1:
        factor = t("positions.this.grown.by", factor=f"{said.grown:.7g}", scores=f"{said.grown**2:.7g}")
        rows.append((t("positions.this.grown"), [factor]))
    if len(facts.angles) > 1:
        rows.append((t("positions.this.kinds"), [", ".join(one.layers for one in facts.angles)]))
    n = np.arange(len(looked.tokens))
    text = _text_panel(np.sin(n[:, None] * said.theta), looked, t, "pair")
    panels = [text, _wave_panel(said.turning, waves, looked, t)]
    return rows, panels, _turn_badges(looked, t)


def _base(said: "Angles") -> str:
    """As the config gives it; else from the angles themselves, θ_1 = base^(-2/d)."""
    if said.base is not None:
        return f"{said.base:,.0f}"
    d = 2 * len(said.theta)
    return f"{float(said.theta[1]) ** (-d / 2):,.0f}" if len(said.turning) > 1 else "?"


def _scaling(said: "Angles", t: Translator) -> str:
    key = f"positions.scaling.{said.scaling}"
    name = t(key) if t.has(key) else said.scaling
    numbers = ", ".join(f"{name.replace('_', ' ')} {significant(value)}" for name, value in said.numbers.items())
    return f"{name} ({numbers})" if numbers else name


def _wave_panel(pairs: np.ndarray, waves: np.ndarray, looked: Looked, t: Translator) -> Panel:
    marks = [Mark(len(looked.tokens), t("positions.this.this_text"), axis="y")]
    if looked.seen.facts.longest:
        marks.append(Mark(looked.seen.facts.longest, t("positions.this.longest"), axis="y"))
    figure = position_curves(
        pairs,
        {t("positions.wavelength"): waves},
        words=(t("positions.pair"), t("positions.wavelength")),
        marks=marks,
        dots=True,
        log=["y"],
    )
    return Panel(figure, title=t("positions.this.waves"), note=t("positions.this.waves.note"), wide=True)


def _turn_badges(looked: Looked, t: Translator) -> list[Badge]:
    turn, layer = looked.turn, looked.layer
    if turn is None:
        return []
    ok = turn.difference <= tolerance(looked.precision) * turn.largest
    difference = significant(turn.difference)
    if turn.angles is None:
        key = "positions.this.still" if ok else "positions.this.unlike"
        return [Badge(ok, t(key, layer=layer, difference=difference))]
    said = t("positions.this.turned" if ok else "positions.this.unlike", layer=layer, difference=difference)
    other = t("positions.this.other", difference=significant(turn.other))
    return [Badge(ok, said), Badge(None, other)]


# ---- added to the scores


def biased(looked: Looked, t: Translator) -> Part:
    """A bias on the scores: T5's, ALiBi's, or one that nothing is known of."""
    facts, bias = looked.seen.facts, looked.attention.bias
    assert bias is not None
    buckets = facts.buckets_of(looked.kind, looked.layer)
    rows, said, panels = _buckets(buckets, bias, t) if buckets else _slopes(facts.slopes, bias, t)
    rows.insert(1, (t("positions.this.enters"), [t("positions.enters.biased")]))
    head = min(looked.head, len(bias) - 1)
    badges = []
    if said is not None:
        difference = float(np.abs(said - bias).max())
        ok = difference <= tolerance(looked.precision) * float(np.abs(bias).max(initial=0))
        badges.append(Badge(ok, t("positions.this.biased", difference=significant(difference))))
    return rows, [_bias_panel(bias[head], head, looked, t), *panels], badges


def _buckets(buckets: "Buckets", bias: np.ndarray, t: Translator) -> tuple[Rows, np.ndarray | None, list[Panel]]:
    from tfviz.introspection.position_checks import bucket_bias

    rows: Rows = [
        (t("positions.scheme"), [t("positions.scheme.t5")]),
        (t("positions.this.buckets"), [f"{len(buckets.table):,}"]),
        (t("positions.this.farthest"), [t("positions.this.tokens", n=buckets.farthest)]),
        (t("positions.this.sides"), [t(f"positions.sides.{'both' if buckets.both_sides else 'past'}")]),
    ]
    return rows, bucket_bias(buckets, *bias.shape[1:]), [_bucket_panel(buckets, t)]


def _slopes(slopes: np.ndarray | None, bias: np.ndarray, t: Translator) -> tuple[Rows, np.ndarray | None, list[Panel]]:
    from tfviz.introspection.position_checks import linear_bias

    if slopes is None:
        return [(t("positions.scheme"), [t("positions.scheme.other")])], None, []
    shown = [significant(float(slope)) for slope in slopes]
    shown = shown if len(shown) <= SHOWN_SLOPES else [*shown[:2], "…", shown[-1]]
    rows: Rows = [
        (t("positions.scheme"), [t("positions.scheme.alibi")]),
        (t("positions.this.slopes.row"), [", ".join(shown)]),
    ]
    return rows, linear_bias(slopes, *bias.shape[1:]), [slope_panel(slopes, t)]


def _bias_panel(bias: np.ndarray, head: int, looked: Looked, t: Translator) -> Panel:
    n_query, n_key = looked.attention.query.shape[1], looked.attention.key.shape[1]
    cells, rows, columns, step = thinned(np.broadcast_to(bias, (n_query, n_key)))
    names: dict[str, Any] = {"rows": looked.tokens, "columns": looked.tokens}
    words = (t("positions.query"), t("positions.key"))
    numbers = {"row_numbers": rows, "column_numbers": columns}
    figure = signed_heatmap(cells, words=words, **(names if step == (1, 1) else numbers))
    return Panel(figure, title=t("positions.this.bias", head=head), note=thinned_note(step, t))


def _bucket_panel(buckets: "Buckets", t: Translator) -> Panel:
    """The learned table by distance: one row a head."""
    from tfviz.introspection.position_checks import relative_bucket

    distances = np.arange(-FAR, FAR + 1 if buckets.both_sides else 1)
    bucket = relative_bucket(distances, len(buckets.table), buckets.farthest, buckets.both_sides)
    words = (t("positions.head"), t("positions.distance"))
    figure = signed_heatmap(buckets.table[bucket].T, column_numbers=distances, words=words)
    return Panel(figure, title=t("positions.this.bucket_table"), note=t("positions.this.bucket_table.note"), wide=True)


def slope_panel(slopes: np.ndarray, t: Translator) -> Panel:
    """ALiBi's slopes, ticks at powers of two."""
    words = (t("positions.head"), t("positions.slope"))
    curves = {words[1]: slopes}
    figure = position_curves(np.arange(len(slopes)), curves, words=words, dots=True, log=["y"], ticks=HALVES)
    return Panel(figure, title=t("positions.this.slopes"), note=t("positions.this.slopes.note"), wide=True)
