"""Positions tab, this model: what the loaded checkpoint uses, read from it, and compared with what it computes."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tfviz.errors import UnsupportedHere
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.positions.common import inside, labels
from tfviz.ui.tabs.positions.this_parts import Looked, Part, Rows, added, biased, turned

if TYPE_CHECKING:
    from tfviz.introspection.position_checks import Turn
    from tfviz.introspection.positions import PositionsSeen


def draw(scene: Scene) -> Picture:
    from tfviz.introspection.positions import look

    assert scene.trace is not None
    trace, seen = scene.trace, scene.examine(look)
    kind, layer, head, _, _ = inside(scene.place, trace)
    stack = trace.stacks[kind]
    turn, reason = compared(scene, seen, kind, layer) if seen.facts.angles else (None, "")
    looked = Looked(
        trace.model_label,
        trace.precision,
        seen,
        kind,
        layer,
        head,
        stack.layers[layer],
        labels(stack.query_tokens),
        turn,
        reason,
    )
    notes = [scene.t("positions.cross")] if scene.place["kind"] == "cross" else []
    return picture(looked, scene.t, notes)


def compared(scene: Scene, seen: "PositionsSeen", kind: str, layer: int) -> "tuple[Turn | None, str]":
    """What the projection gave against what the attention read."""
    from tfviz.introspection.anatomy import examine
    from tfviz.introspection.position_checks import which_turn

    assert scene.trace is not None
    query = scene.trace.stacks[kind].layers[layer].query
    n_heads, n, dim = query.shape
    if n < 2:
        return None, scene.t("positions.this.one")
    before = seen.normed.get((kind, layer))
    if before is None:
        try:
            found = scene.examine(examine).attentions.get((kind, layer))
        except UnsupportedHere as error:
            return None, scene.t.error(error)
        if found is None or found.query.size != query.size:
            return None, scene.t("positions.this.unseen")
        before = found.query.reshape(n, n_heads, dim).transpose(1, 0, 2)
    return which_turn(before, query, seen.facts.angles_of(layer, dim)), ""


def picture(looked: Looked, t: Translator, notes: Sequence[str] = ()) -> Picture:
    """Facts, the encoding of this text, and what the scheme looks like beyond it."""
    facts, side = looked.seen.facts, looked.kind
    rows: Rows = []
    panels: list[Panel] = []
    badges: list[Badge] = []
    parts: list[tuple[bool, Callable[[], Part]]] = [
        (side in facts.tables, lambda: added(looked, facts.tables[side], t)),
        (bool(facts.angles), lambda: turned(looked, t)),
        (looked.attention.bias is not None and bool(looked.attention.bias.any()), lambda: biased(looked, t)),
    ]
    for there, part in parts:
        if there:
            more_rows, more_panels, more_badges = part()
            rows, panels, badges = rows + more_rows, panels + more_panels, badges + more_badges
    if not rows:
        rows = [(t("positions.scheme"), [t("positions.scheme.none")])]
        badges = [Badge(None, t("positions.this.none"))]
    elif facts.longest is not None:
        rows.append((t("positions.this.longest"), [t("positions.this.tokens", n=facts.longest)]))
    html = table(t("positions.this.facts"), [looked.model], rows)
    first = Panel(html=html, title=t("positions.this.facts"), note=t("positions.this.facts.note"))
    return Picture([first, *panels], badges, [*notes, *([looked.reason] if looked.reason else [])])


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.position_checks import bucket_bias, turn, which_turn
    from tfviz.model.positions.rope import angles

    return angles, turn, which_turn, bucket_bias


SECTION = Section("positions.this", draw, selects=("layer", "head"), code=code)
