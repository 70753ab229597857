"""Positions tab, biases: ALiBi's penalty on distance and T5's learned buckets, as they are added to the scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np
from jaxtyping import Float

from tfviz.figures.positions import position_curves, signed_heatmap
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.positions.common import own_kind, scheme_control
from tfviz.ui.tabs.positions.this_parts import slope_panel

if TYPE_CHECKING:
    from tfviz.sources.positions import Buckets

HEADS = (8, 12, 16)
SHOWN = 6  # heads as curves
DRAFT = {"n_buckets": 32, "farthest": 128}  # T5's, where no table is loaded
FAR = 160


@dataclass(frozen=True)
class Biases:
    """Every head's bias between positions, made by the model's code."""

    scheme: str
    bias: Float[np.ndarray, "head query key"]
    slopes: Float[np.ndarray, " head"] | None = None
    said: Float[np.ndarray, "head query key"] | None = None  # the formula, written a second time


def controls(t: Translator) -> dict[str, Any]:
    return {
        "scheme": scheme_control(t, ("alibi", "t5")),
        "n_heads": gr.Radio([(str(n), n) for n in HEADS], value=8, label=t("positions.bias.heads")),
        "head": gr.Slider(0, max(HEADS) - 1, value=2, step=1, label=t("positions.head")),
        "length": gr.Slider(8, 128, value=32, step=8, label=t("positions.length")),
    }


def draw(scene: Scene, scheme: str, n_heads: int, head: int, length: int) -> Picture:
    n, head = int(length), int(head)
    if scheme == "alibi":
        return picture(alibi(int(n_heads), n), head, scene.t)
    from tfviz.introspection.position_checks import bucket_bias
    from tfviz.introspection.positions import look

    assert scene.trace is not None
    buckets = scene.examine(look).facts.buckets_of(own_kind(scene.place), int(scene.place["layer"]))
    if buckets is None:
        return buckets_only(n, scene.t)
    return picture(Biases("t5", bucket_bias(buckets, n, n)), head, scene.t, _table_curves(buckets, scene.t))


def alibi(n_heads: int, n: int) -> Biases:
    """What our scheme adds to the scores, and -m |i - j| of the same slopes."""
    import torch

    from tfviz.config import TransformerConfig
    from tfviz.introspection.position_checks import linear_bias
    from tfviz.model.positions import POSITIONS
    from tfviz.model.positions.alibi import slopes

    scheme = POSITIONS["alibi"](TransformerConfig(vocab_size=4, d_model=n_heads, n_heads=n_heads))
    positions = torch.arange(n)[None]
    bias = scheme.bias(positions, positions)
    assert bias is not None
    m = slopes(n_heads).numpy()
    return Biases("alibi", bias[0].numpy(), m, linear_bias(m, n, n))


def picture(shown: Biases, head: int, t: Translator, last: Panel | None = None) -> Picture:
    """One head as a matrix, several heads over distance, and the slopes (T5: the table)."""
    n_heads = len(shown.bias)
    notes = [] if head < n_heads else [t("positions.bias.clipped", head=n_heads - 1, n=n_heads)]
    head = min(head, n_heads - 1)
    heat = signed_heatmap(shown.bias[head], words=(t("positions.query"), t("positions.key")))
    panels = [Panel(heat, title=t("positions.this.bias", head=head), note=t(f"positions.bias.{shown.scheme}.note"))]
    panels.append(_by_distance(shown.bias, head, t))
    if shown.slopes is not None:
        last = slope_panel(shown.slopes, t)
    return Picture([*panels, *([last] if last is not None else [])], _badges(shown, t), notes)


def _by_distance(bias: np.ndarray, head: int, t: Translator) -> Panel:
    """The last query's bias on each key, by how far back it is; a few heads, the chosen one among them."""
    every = np.unique(np.append(np.linspace(0, len(bias) - 1, min(SHOWN - 1, len(bias))).round().astype(int), head))
    n = bias.shape[-1]
    curves = {t("positions.bias.head", n=h): bias[h, -1, ::-1] for h in every}
    words = (t("positions.bias.back"), t("positions.bias.added"))
    return Panel(
        position_curves(np.arange(n), curves, words=words),
        title=t("positions.bias.curves"),
        note=t("positions.bias.curves.note"),
    )


def _badges(shown: Biases, t: Translator) -> list[Badge]:
    diagonal = float(np.abs(np.diagonal(shown.bias, axis1=1, axis2=2)).max())
    same = max(
        float(np.ptp(np.diagonal(shown.bias, offset, 1, 2), axis=-1).max()) for offset in range(shown.bias.shape[-1])
    )
    allowed = rounding.once() * float(np.abs(shown.bias).max())
    badges = [Badge(same <= allowed, t("positions.bias.distance_only", difference=significant(same)))]
    if shown.said is not None:
        off = float(np.abs(shown.said - shown.bias).max())
        badges.append(Badge(off <= allowed, t("positions.bias.linear", difference=significant(off))))
        badges.append(Badge(diagonal == 0, t("positions.bias.diagonal", largest=significant(diagonal))))
    return badges


def _table_curves(buckets: "Buckets", t: Translator) -> Panel:
    from tfviz.introspection.position_checks import relative_bucket

    distances = np.arange(-FAR, FAR + 1 if buckets.both_sides else 1)
    bucket = relative_bucket(distances, len(buckets.table), buckets.farthest, buckets.both_sides)
    heads = np.linspace(0, buckets.table.shape[1] - 1, min(SHOWN, buckets.table.shape[1])).round().astype(int)
    curves = {t("positions.bias.head", n=h): buckets.table[bucket, h] for h in heads}
    words = (t("positions.distance"), t("positions.bias.added"))
    figure = position_curves(distances, curves, words=words, steps=True)
    return Panel(figure, title=t("positions.this.bucket_table"), note=t("positions.this.bucket_table.note"), wide=True)


def buckets_only(n: int, t: Translator) -> Picture:
    """Which bucket each distance falls into; the numbers in the buckets are learned, and no table is loaded."""
    from tfviz.introspection.position_checks import relative_bucket

    distances = np.arange(-FAR, FAR + 1)
    both = relative_bucket(distances, **DRAFT, both_sides=True)
    past = relative_bucket(distances, **DRAFT, both_sides=False)
    curves = {
        t("positions.bias.encoder"): both.astype(np.float32),
        t("positions.bias.decoder"): past.astype(np.float32),
    }
    words = (t("positions.distance"), t("positions.bias.bucket"))
    figure = position_curves(distances, curves, words=words, steps=True)
    panel = Panel(figure, title=t("positions.bias.buckets"), note=t("positions.bias.buckets.note", **DRAFT), wide=True)
    last = int(np.abs(distances[both == both.max()]).min())
    badge = Badge(last <= DRAFT["farthest"], t("positions.bias.last", n=last))
    return Picture([panel], [badge], [t("positions.bias.no_table")])


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.position_checks import bucket_bias, relative_bucket
    from tfviz.model.positions.alibi import Alibi, slopes

    return slopes, Alibi, relative_bucket, bucket_bias


SECTION = Section(
    "positions.bias",
    draw,
    formulas=(r"\text{scores}_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}} - m_h\,\lvert i - j\rvert",),
    controls=controls,
    tries=(Try("twelve", {"n_heads": 12}), Try("last", {"head": 7}), Try("t5", {"scheme": "t5"})),
    code=code,
)
