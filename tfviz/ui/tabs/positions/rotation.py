"""Positions tab, rotation: real q and k as arrows that RoPE turns, and PE(pos + k) as a turned PE(pos)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from tfviz.figures.positions import Mark, position_curves
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.positions.this_model import compared

if TYPE_CHECKING:
    from tfviz.sources.positions import Angles

SHIFTS = (0, 1, 10, 100, 1000)  # both positions moved by so many
SHOWN = 4  # pairs as arrows
LENT = 10_000.0  # base of the angles for what has none
FAR = 256  # distances of the curve
SINUSOIDS = {"d": 128, "base": 10_000.0, "n": 256}
STEPS = (1, 10, 100)  # k of PE(pos + k)
WORDS = ("shift", "move", "score", "distance", "pair", "turn", "play", "stop", "query", "key", "at", "arrows.of")

BLANKS = {name: f"{{{name}}}" for name in ("n", "i", "p", "angle")}  # filled by the renderer

Vector = Float[np.ndarray, " dim"]


@dataclass(frozen=True)
class Two:
    """A query and a key before they are turned, where they stand, and how they are turned."""

    q: Vector
    k: Vector
    places: tuple[int, int]
    tokens: tuple[str, str]
    said: "Angles"
    scale: float


def draw(scene: Scene) -> Picture:
    assert scene.trace is not None
    trace, t = scene.trace, scene.t
    kind, layer, head, query, key = (scene.place[name] for name in ("kind", "layer", "head", "query", "key"))
    stack = trace.stacks[kind]
    attention = stack.layers[layer]
    q = attention.query[head, query]
    k = attention.key[head * len(attention.key) // len(attention.query), key]
    said, own, note = _angles(scene, kind, layer, len(q))
    if said is None:
        return Picture([], notes=[note])
    if own:  # the trace has them turned: back to where they were
        q, k = _turned(q, -query, said), _turned(k, -key, said)
    scale = len(q) ** -0.5 if attention.scale is None else attention.scale
    two = Two(q, k, (query, key), (stack.query_tokens[query].label, stack.key_tokens[key].label), said, scale)
    return picture(two, t, [note] if note else [])


def _angles(scene: Scene, kind: str, layer: int, dim: int) -> "tuple[Angles | None, bool, str]":
    """(the layer's own angles with their pairing, or the formula's; whether they are its own; what to say of them)"""
    from tfviz.introspection.position_curves import rope_angles
    from tfviz.introspection.positions import look

    t, seen = scene.t, scene.examine(look)
    if seen.facts.angles and kind != "cross":  # what looks at another text is never turned
        turn, reason = compared(scene, seen, kind, layer)
        if turn is None:  # nothing to compare with: as the config says, or as most do
            said = next(iter(seen.facts.angles_of(layer, dim)), None)
            if said is not None:
                return replace(said, pairs=said.pairs or "halves", grown=1.0), True, reason
        elif turn.angles is not None:
            return replace(turn.angles, pairs=turn.pairs, grown=1.0), True, ""
    if dim % 2:
        return None, False, t("positions.rotation.odd", n=dim)
    return rope_angles(dim, LENT), False, t("positions.rotation.lent", base=f"{LENT:,.0f}")


def _turned(x: Vector, by: int, said: "Angles") -> Vector:
    from tfviz.introspection.position_checks import turn

    return turn(x[None, None], said, said.pairs, np.array([by]))[0, 0]


def in_pairs(x: Vector, said: "Angles") -> Float[np.ndarray, "pair 2"]:
    """The two numbers of each pair, by its convention; what is not turned is left out."""
    n = len(said.theta)
    turned = x[: 2 * n]
    return turned.reshape(n, 2) if said.pairs == "interleaved" else turned.reshape(2, n).T


def picture(two: Two, t: Translator, notes: Sequence[str] = ()) -> Picture:
    """Arrows, the score over the distance, and the sinusoids' own rotation."""
    from tfviz.introspection.position_curves import scores_of

    distances = np.arange(FAR + 1)
    scores = scores_of(two.q, two.k, two.said, distances) * two.scale
    apart = two.places[0] - two.places[1]
    marks = [Mark(apart)] if apart >= 0 else []
    words = (t("positions.distance"), t("positions.rotation.score"))
    curve = position_curves(distances, {words[1]: scores}, words=words, marks=marks)
    panels = [
        Panel(view="rotation", data=arrows(two, t), title=t("positions.rotation.arrows"), wide=True),
        Panel(curve, title=t("positions.rotation.curve"), note=t("positions.rotation.curve.note")),
        _sinusoid_panel(t),
    ]
    return Picture(panels, _badges(two, t), notes)


def arrows(two: Two, t: Translator) -> dict[str, Any]:
    """What the renderer needs: every pair for the score, and which to draw."""
    q, k, n = in_pairs(two.q, two.said), in_pairs(two.k, two.said), len(two.said.theta)
    size = np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1)  # how much a pair can add to the score
    turning = two.said.turning
    groups = np.array_split(turning, min(SHOWN, len(turning)))
    rest = float(two.q[2 * n :] @ two.k[2 * n :])
    return {
        "q": q.astype(float).round(6).tolist(),
        "k": k.astype(float).round(6).tolist(),
        "theta": two.said.theta.astype(float).tolist(),
        "shown": [int(group[size[group].argmax()]) for group in groups],
        "rest": rest,
        "scale": two.scale,
        "places": list(two.places),
        "tokens": list(two.tokens),
        "words": {word: t(f"positions.rotation.{word}", **BLANKS) for word in WORDS},
    }


def _sinusoid_panel(t: Translator) -> Panel:
    from tfviz.introspection.position_curves import rotation_residual

    rows = []
    for k in STEPS:
        fits, other = rotation_residual(shift=k, **SINUSOIDS)  # type: ignore[arg-type]
        rows.append((f"k = {k}", [significant(fits), significant(other)]))
    heads = [t("positions.rotation.fits"), t("positions.rotation.next")]
    html = table(t("positions.rotation.sinusoids"), heads, rows)
    note = t("positions.rotation.sinusoids.note", d=SINUSOIDS["d"], n=SINUSOIDS["n"])
    return Panel(html=html, title=t("positions.rotation.sinusoids"), note=note)


def _badges(two: Two, t: Translator) -> list[Badge]:
    """The score stays while both move; position 0 turns nothing; PE(pos + k) is a rotation of PE(pos)."""
    from tfviz.introspection.position_curves import rotation_residual

    m, n = two.places
    scores = [float(_turned(two.q, m + s, two.said) @ _turned(two.k, n + s, two.said)) * two.scale for s in SHIFTS]
    spread = max(scores) - min(scores)
    allowed = 1e-4 * float(np.linalg.norm(two.q) * np.linalg.norm(two.k)) * abs(two.scale)
    still = float(np.abs(_turned(two.q, 0, two.said) - two.q).max())
    residual = max(rotation_residual(shift=k, **SINUSOIDS)[0] for k in STEPS)  # type: ignore[arg-type]
    return [
        Badge(spread <= allowed, t("positions.rotation.same", n=f"{SHIFTS[-1]:,}", difference=significant(spread))),
        Badge(still == 0, t("positions.rotation.zero", difference=significant(still))),
        Badge(residual < 1e-3, t("positions.rotation.residual", difference=significant(residual))),
        Badge(None, t(f"positions.rotation.{two.said.pairs}")),
    ]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.position_checks import turn
    from tfviz.introspection.position_curves import rotation_residual, scores_of
    from tfviz.model.positions.rotation import Rotation

    return Rotation, turn, scores_of, rotation_residual


SECTION = Section(
    "positions.rotation",
    draw,
    formulas=(
        r"\begin{pmatrix} x'_1 \\ x'_2 \end{pmatrix} = \begin{pmatrix} \cos m\theta_i & -\sin m\theta_i \\"
        r" \sin m\theta_i & \cos m\theta_i \end{pmatrix} \begin{pmatrix} x_1 \\ x_2 \end{pmatrix},"
        r"\qquad (R_m q)\cdot(R_n k) = q \cdot R_{n-m}\, k",
    ),
    selects=("layer", "head", "query", "key"),
    tries=(Try("zero", place={"query": 0, "key": 0}),),
    code=code,
)
