"""Pictures of how a prediction comes about: over the layers of one position, what the logit lens sees there.

x counts layers as the page does, from 0; -1 is the embedding, before the first layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import SERIES, SOFT, layout, plain

PerRow = Float[np.ndarray, " row"]
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}}
HEIGHT = 300
FAR = 3  # times everything else: then the embedding would hide the layers


def lens_ranks(
    probs: PerRow,
    ranks: Int[np.ndarray, " row"],
    at: int | None = None,
    *,
    words: Sequence[str] = ("layer", "probability", "rank", "embedding"),
) -> go.Figure:
    """One token over the rows of a lens (the embedding first): its probability, and its rank (1 on top, logarithmic).

    `at` is the chosen layer.
    """
    layer, probability, rank, start = words
    x = np.arange(-1, len(probs) - 1)
    lines = [_line(probability, x, probs, SERIES[0], layer), _line(rank, x, ranks, SERIES[1], layer) | {"yaxis": "y2"}]
    decades = max(1.0, float(np.log10(ranks.max(initial=1))))
    right = {"overlaying": "y", "side": "right", "type": "log", "range": [decades * 1.04, -decades * 0.04]}
    ticks = [10**i for i in range(int(decades) + 1)]
    y2 = _axis(rank, SERIES[1]) | right | {"tickvals": ticks, "ticktext": [f"{one:,}" for one in ticks]}
    y = _axis(probability, SERIES[0]) | {"range": [-0.04, 1.04], "showgrid": True}
    return _figure(lines, layer, start, len(probs), at, {"yaxis": y, "yaxis2": y2})


def lens_distances(
    kl: PerRow,
    entropy: PerRow,
    at: int | None = None,
    *,
    words: Sequence[str] = ("layer", "nats", "KL", "entropy", "embedding"),
) -> go.Figure:
    """Over the rows of a lens: how far each distribution is from the last one (KL), and how spread it is (entropy).

    Where the embedding is farther than all layers by far, the line leaves the picture and its value stands there.
    """
    layer, nats, kl_word, entropy_word, start = words
    x = np.arange(-1, len(kl) - 1)
    lines = [_line(kl_word, x, kl, SERIES[2], layer), _line(entropy_word, x, entropy, SERIES[5], layer)]
    y = _axis(nats, SOFT) | {"rangemode": "tozero", "showgrid": True}
    most = float(max(kl[1:].max(initial=0), entropy.max(initial=0)))
    if not 0 < most * FAR < kl[0]:
        return _figure(lines, layer, start, len(kl), at, {"yaxis": y})
    said = {"text": f"↑ {kl[0]:.3g}", "font": {"color": SERIES[2], "size": 12}, "showarrow": False}
    said |= {"x": -1, "xanchor": "left", "xshift": 8, "y": 1, "yref": "paper", "yanchor": "top"}
    y |= {"range": [-0.04 * most, 1.2 * most]}
    return _figure(lines, layer, start, len(kl), at, {"yaxis": y, "annotations": [said]})


def _line(name: str, x: np.ndarray, y: np.ndarray, colour: str, layer: str) -> dict[str, Any]:
    values = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    look = {"line": {"color": colour, "width": 2}, "marker": {"size": 5}, "mode": "lines+markers"}
    hover = f"{plain(layer)} %{{x}}: %{{y:.3~g}}<extra>{plain(name)}</extra>"
    return {"type": "scatter", "name": plain(name), **values, **look, "hovertemplate": hover}


def _axis(title: str, colour: str) -> dict[str, Any]:
    base: dict[str, Any] = layout(y=title)["yaxis"]
    return base | {"title": {**base["title"], "standoff": 8, "font": {"size": 13, "color": colour}}}


def _figure(
    lines: Sequence[dict[str, Any]], layer: str, start: str, n: int, at: int | None, axes: Mapping[str, Any]
) -> go.Figure:
    base = layout(x=layer)
    step = next((step for step in (1, 2, 5, 10) if n <= 9 * step), 20)
    ticks = [*range(0 if step == 1 else step, n - 1, step)]  # the embedding's name takes room
    x = base["xaxis"] | {"tickvals": [-1, *ticks], "ticktext": [plain(start), *map(str, ticks)], "tickangle": 0}
    x |= {"title": {**base["xaxis"]["title"], "standoff": 8}, "range": [-1.5, n - 1.5]}
    line = {"color": SOFT, "width": 1.5, "dash": "dot"}
    mark = {"type": "line", "layer": "below", "line": line, "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
    own = {"legend": LEGEND, "showlegend": True, "hovermode": "closest", "height": HEIGHT}
    own |= {"margin": {"l": 56, "r": 56, "t": 40, "b": 48}, "shapes": [] if at is None else [mark]}
    return go.Figure({"data": list(lines), "layout": {**base, "xaxis": x, **axes, **own}})
