"""Positions tab, word order: the typed tokens shuffled, and what the first layer's attention makes of that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from tfviz.figures.positions import matrices
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.positions.common import inside, labels, tolerance

if TYPE_CHECKING:
    from tfviz.introspection.word_order import Shuffled

Weights = Float[np.ndarray, "query key"]
READINGS = ("without", "with")


@dataclass(frozen=True)
class Read:
    """Two matrices over the same tokens: of the text, and of its shuffled tokens put back in the text's order."""

    plain: Weights
    back: Weights

    @property
    def difference(self) -> float:
        return float(np.abs(self.plain - self.back).max())


def draw(scene: Scene) -> Picture:
    from tfviz.introspection.word_order import shuffle

    assert scene.trace is not None
    trace = scene.trace
    found: Shuffled = scene.examine(shuffle)
    kind, _, head, _, _ = inside({**scene.place, "kind": next(iter(trace.stacks))}, trace)
    tokens = labels(trace.stacks[kind].key_tokens[: len(found.order)])
    read = {name: _read(found, name, head) for name in READINGS}
    cut = len(trace.stacks[kind].key_tokens) - len(tokens)
    notes = [scene.t("positions.order.cut", n=len(tokens))] if cut else []
    shuffled = [tokens[i] for i in found.order]
    masked = _read(found, "without", head, causal=True).difference
    return picture(read, masked, tokens, shuffled, tolerance(trace.precision), scene.t, notes)


def _read(found: "Shuffled", name: str, head: int, causal: bool = False) -> Read:
    from tfviz.introspection.word_order import put_back

    plain, shuffled = found.plain[name], found.shuffled[name]
    return Read(plain.weights(head, causal), put_back(shuffled.weights(head, causal), found.order))


def picture(
    read: dict[str, Read],
    masked: float,
    tokens: Sequence[str],
    shuffled: Sequence[str],
    allowed: float,
    t: Translator,
    notes: Sequence[str] = (),
) -> Picture:
    """Without and with positions: the text, the shuffled text put back, and their difference."""
    words = [t(f"positions.order.{key}") for key in ("plain", "back", "difference")]
    panels = []
    for name in READINGS:
        one = read[name]
        figure = matrices(one.plain, one.back, tokens, words=words)
        note = t("positions.order.shuffled", text=" ".join(shuffled)) if name == "without" else ""
        panels.append(Panel(figure, title=t(f"positions.order.{name}"), note=note, wide=True))
    return Picture(panels, _badges(read, masked, allowed, t), notes)


def _badges(read: dict[str, Read], masked: float, allowed: float, t: Translator) -> list[Badge]:
    """Equal without positions, another matrix with them; `masked`: how far apart a causal mask alone brings them."""
    without, with_positions = (read[name].difference for name in READINGS)
    differs = True if with_positions > allowed else None  # a model may have no positions
    return [
        Badge(without <= allowed, t("positions.order.same", difference=significant(without))),
        Badge(differs, t("positions.order.other", difference=significant(with_positions))),
        Badge(None, t("positions.order.masked", difference=significant(masked))),
    ]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.word_order import put_back, shuffle, shuffled_places
    from tfviz.model.attention import attention_weights

    return attention_weights, shuffle, shuffled_places, put_back


SECTION = Section(
    "positions.order",
    draw,
    formulas=(r"A(PX) = P\,A(X)\,P^{\top}",),
    selects=("head",),
    tries=(Try("bites", sentence="The dog bites the man"),),
    code=code,
)
