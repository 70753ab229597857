"""Step by step, many heads: what they cost against one of the same width, and how alike those of this layer are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.errors import UnsupportedHere
from tfviz.figures.steps import head_similarity
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.anatomy import Anatomy
    from tfviz.introspection.experiments.heads import Matrix, Pairs
    from tfviz.introspection.trace import LayerAttention

FORMULAS = (
    r"\underbrace{3\, d_{\text{model}}^2}_{W^Q,\, W^K,\, W^V} + \underbrace{d_{\text{model}}^2}_{W^O}"
    r" = 4\, d_{\text{model}}^2 \qquad (h \cdot d_k = d_{\text{model}})",
    r"\text{similarity}(a, b) = 1 - \frac{1}{n} \sum_i \text{JSD}\left(\alpha^a_i, \alpha^b_i\right)",
)
ROUNDING = rounding.once()  # of a sum of FP32 weights
SMALL = 0.1  # biases and norms may add so much to the matrices; more means that something else was counted


@dataclass(frozen=True)
class Shape:
    """The attention of one layer in numbers."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    dim: int
    value_dim: int
    counted: int | None  # parameters of the loaded module itself


def draw(scene: Scene) -> Picture:
    from tfviz.introspection import anatomy
    from tfviz.introspection.experiments.heads import compared_queries

    assert scene.trace is not None
    kind, number = scene.place["kind"], scene.place["layer"]
    layer = scene.trace.stacks[kind].layers[number]
    shape, missing = None, ""
    try:
        shape = shape_of(layer, scene.examine(anatomy.examine), kind, number)
    except UnsupportedHere as error:
        missing = scene.t.error(error)
    chosen = compared_queries(layer.blocked, len(layer.query))
    weights = np.concatenate([layer.weights(head)[:, chosen] for head in range(len(layer.query))])
    return picture(weights, len(layer.key), scene.place["head"], shape, scene.t, layer.query.shape[1], missing)


def shape_of(layer: "LayerAttention", anatomy: "Anatomy", kind: str, number: int) -> Shape:
    """Read from the arrays of the pass; the count from the model's own parameters, where its layer could be read."""
    side, part = ("decoder", "cross") if kind == "cross" else (kind, "attention")
    seen = anatomy.layers.get((side, number))
    return Shape(
        d_model=anatomy.attentions[kind, number].output.shape[1],
        n_heads=len(layer.query),
        n_kv_heads=len(layer.key),
        dim=layer.query.shape[-1],
        value_dim=layer.value.shape[-1],
        counted=None if seen is None else seen.parameters.get(part),
    )


def picture(
    weights: np.ndarray, n_kv_heads: int, head: int, shape: Shape | None, t: Translator, n_query: int, missing: str = ""
) -> Picture:
    """`weights` [head, query, key] of the compared queries; `n_query` of the sentence."""
    from tfviz.introspection.experiments.heads import pairs, similarity

    notes, panels, badges, html = [missing] if missing else [], [], [], ""
    if len(weights) < 2 or not weights.shape[1]:
        notes.append(t("step.heads.one" if len(weights) < 2 else "step.heads.no_choice"))
    else:
        matrix = similarity(weights)
        found = pairs(matrix, n_kv_heads)
        off = float(np.abs(weights.sum(axis=-1) - 1).max())
        badges.append(
            Badge(off <= ROUNDING, t("step.badge.heads", difference=significant(off)), t("step.badge.heads.title"))
        )
        drawn = head_similarity(matrix, head, words=(t("step.flow.head"), t("step.heads.similarity")))
        note = t("step.heads.click", n=weights.shape[1], of=n_query)
        panels.append(Panel(drawn, t("step.heads.alike"), note, select={"y": "head"}))
        html = named(matrix, found, t)
    if shape is not None:
        html += f'<h3 class="tv-step-h3">{escape(t("step.heads.cost"))}</h3>{counts(shape, t)}'
        html += f'<p class="tv-caption">{escape(_said(shape, t))}</p>'
        badges += count_badges(shape, t)
    return Picture([*panels, Panel(html=html, title=t("step.heads.ends") if panels else "")], badges, notes)


def named(matrix: np.ndarray, found: "Pairs", t: Translator) -> str:
    """The most alike and the most different pair, each head a button that selects it; and the means."""
    lines = []
    for key, (a, b) in (("most", found.alike), ("least", found.different)):
        lines.append(_line(t(f"step.heads.{key}"), [_pick(one, t) for one in (a, b)], float(matrix[a, b])))
    lines.append(_line(t("step.heads.mean"), [], found.mean))
    if found.mean_inside is not None and found.mean_across is not None:
        lines.append(_line(t("step.heads.inside"), [], found.mean_inside))
        lines.append(_line(t("step.heads.across"), [], found.mean_across))
    return f'<div class="tv-step-pairs">{"".join(lines)}</div>'


def _line(name: str, buttons: Sequence[str], value: float) -> str:
    return f"<p><span>{escape(name)}</span><i>{''.join(buttons)}</i><b>{value:.2f}</b></p>"


def _pick(head: int, t: Translator) -> str:
    name = escape(f"{t('step.flow.head')} {head}")
    return f'<button type="button" data-select=\'{{"head":{head}}}\'>{name}</button>'


def totals(shape: Shape) -> tuple[Sequence["Matrix"], Sequence["Matrix"]]:
    """(the matrices of this layer, those of one head as wide as all of its heads together)"""
    from tfviz.introspection.experiments.heads import projections

    own = projections(shape.d_model, shape.n_heads, shape.n_kv_heads, shape.dim, shape.value_dim)
    return own, projections(shape.d_model, 1, 1, shape.n_heads * shape.dim, shape.n_heads * shape.value_dim)


def counts(shape: Shape, t: Translator) -> str:
    """Each matrix of this layer beside that of one head of the same width."""
    own, one = totals(shape)
    rows = [(mine.name, (_of(mine), f"{mine.size:,}", f"{other.size:,}")) for mine, other in zip(own, one, strict=True)]
    rest = 0 if shape.counted is None else shape.counted - _sum(own)
    if rest:
        rows.append((t("step.heads.rest"), ("", f"{rest:,}", "")))
    rows.append((t("step.heads.sum"), ("", f"{_sum(own) + rest:,}", f"{_sum(one):,}")))
    heads = t("step.heads.shape"), t("step.heads.these", n=shape.n_heads), t("step.heads.single")
    return table(t("step.heads.cost"), heads, rows)


def _sum(matrices: Sequence["Matrix"]) -> int:
    return sum(one.size for one in matrices)


def count_badges(shape: Shape, t: Translator) -> list[Badge]:
    """The article's 4 d_model^2, and the formula's count against the loaded module's own."""
    own, one = totals(shape)
    badges = [_equality(shape, (_sum(own), _sum(one)), 4 * shape.d_model**2, t)]
    if shape.counted is not None:
        rest = shape.counted - _sum(own)
        text = t("step.badge.counted", n=f"{shape.counted:,}", formula=f"{_sum(own):,}", rest=f"{rest:,}")
        badges.append(Badge(0 <= rest <= SMALL * _sum(own), text, t("step.badge.counted.title")))
    return badges


def _equality(shape: Shape, sums: tuple[int, int], square: int, t: Translator) -> Badge:
    """The article's claim, where its conditions are met; else why it does not apply."""
    if shape.n_kv_heads < shape.n_heads:
        return Badge(None, t("step.badge.grouped", part=f"{100 * sums[0] / sums[1]:.0f} %"))
    if shape.n_heads * shape.dim != shape.d_model:
        return Badge(None, t("step.badge.other_width", width=shape.n_heads * shape.dim, d_model=shape.d_model))
    return Badge(sums[0] == sums[1] == square, t("step.badge.same", n=f"{sums[0]:,}"), t("step.badge.same.title"))


def _said(shape: Shape, t: Translator) -> str:
    if shape.n_kv_heads == shape.n_heads:
        return t("step.heads.note")
    own, one = totals(shape)
    return t("step.heads.grouped", heads=shape.n_heads, kv=shape.n_kv_heads, saved=f"{_sum(one) - _sum(own):,}")


def _of(matrix: "Matrix") -> str:
    return f"{matrix.rows:,} × {matrix.columns:,}"


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments.heads import entropy, projections, similarity

    return similarity, entropy, projections


SECTION = Section(
    key="step.heads",
    draw=draw,
    formulas=FORMULAS,
    selects=("kind", "layer", "head"),
    tries=(Try("first", place={"layer": 0}), Try("last", place={"layer": 99})),
    code=code,
)
