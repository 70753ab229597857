"""Pictures of a layer's inside: activation functions, lengths in the residual stream, what each sublayer adds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import SERIES, SOFT, WEIGHT_SCALE, layout, plain, position_axis

Points = Float[np.ndarray, " point"]
PerLayer = Float[np.ndarray, " layer"]
QUERY = "#d97706"
STRONG = {"color": SERIES[0], "width": 3}
DASHES = ("dot", "dash", "dashdot")
TITLE = {"font": {"size": 13}, "standoff": 8}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}}
LABELS = 48  # of tokens on a wide axis
MARGIN = {"l": 56, "r": 12, "t": 40, "b": 48}


def activation_functions(
    x: Points,
    curves: Mapping[str, Points],
    own: str = "",
    units: Float[np.ndarray, " unit"] | None = None,
    mark: float | None = None,
    *,
    words: Sequence[str] = ("x", "f(x)", "units", "strongest unit"),
) -> go.Figure:
    """One line a function, `own` drawn strong; `units` are points on it at these x, one more of them marked.

    `ValueError` for points without a function to lie on.
    """
    x_word, y_word, units_word, mark_word = words
    if own not in curves and (units is not None or mark is not None):
        raise ValueError(f"no curve {own!r} for the points to lie on; there are {', '.join(curves)}")
    figure = go.Figure(layout=layout(x=x_word, y=y_word))
    for i, (name, y) in enumerate(sorted(curves.items(), key=lambda one: one[0] == own)):
        line = STRONG if name == own else {"color": SOFT, "width": 1.5, "dash": DASHES[i % len(DASHES)]}
        hover = f"{plain(name)}: %{{y:.3g}}<extra></extra>"
        figure.add_scatter(x=x, y=y, mode="lines", name=plain(name), line=line, hovertemplate=hover)
    if units is not None:
        marker = {"color": QUERY, "size": 7, "opacity": 0.25}
        _points(figure, units, np.interp(units, x, curves[own]), units_word, marker)
    if mark is not None:
        marker = {"color": QUERY, "size": 11, "line": {"color": "#ffffff", "width": 1.5}}
        _points(figure, np.array([mark]), np.interp([mark], x, curves[own]), mark_word, marker)
    figure.update_xaxes(zeroline=True, range=[float(x[0]), float(x[-1])], title=TITLE)
    figure.update_yaxes(zeroline=True)
    return figure.update_layout(height=300, margin=MARGIN, legend=LEGEND, hovermode="closest")


def _points(figure: go.Figure, x: np.ndarray, y: np.ndarray, name: str, marker: dict[str, Any]) -> None:
    x, y = x.astype(np.float32), y.astype(np.float32)
    hover = f"{plain(name)}: %{{x:.3g}} → %{{y:.3g}}<extra></extra>"
    figure.add_scatter(x=x, y=y, mode="markers", name=plain(name), marker=marker, hovertemplate=hover)


def length_map(
    lengths: Float[np.ndarray, "layer token"],
    tokens: Sequence[str],
    at: tuple[int, int] | None = None,
    *,
    first: int = 0,
    words: Sequence[str] = ("layer", "length"),
) -> go.Figure:
    """Lengths of vectors, one row a layer (0 at the bottom), from token `first` on; `at` (layer, token) is framed.

    Colour is their logarithm. `ValueError` if there is not one label a token.
    """
    if len(tokens) != lengths.shape[1]:
        raise ValueError(f"{len(tokens)} labels for {lengths.shape[1]} tokens")
    layer_word, length_word = words
    logs = np.log10(np.maximum(lengths, 1e-12)).astype(np.float32)
    low, high = _ends(logs)
    bar = {"title": {"text": length_word, "font": {"size": 12}}, "thickness": 10, "outlinewidth": 0}
    figure = go.Figure(layout=layout(y=layer_word))
    figure.add_heatmap(
        z=logs,
        x0=first,
        dx=1,
        customdata=lengths.astype(np.float32),
        zmin=low,
        zmax=high,
        colorscale=WEIGHT_SCALE,
        meta="weights",
        colorbar={**bar, **_log_ticks(low, high)},
        hovertemplate=f"{layer_word} %{{y}}, %{{x}}: %{{customdata:.3g}}<extra></extra>",
    )
    if at is not None:
        layer, token = at
        corners = {"x0": token - 0.5, "x1": token + 0.5, "y0": layer - 0.5, "y1": layer + 0.5}
        figure.add_shape(type="rect", **corners, line={"color": QUERY, "width": 2})
    figure.update_xaxes(**_token_axis(tokens, first), autotickangles=[0, 60, 90])
    figure.update_yaxes(title=TITLE)
    return figure.update_layout(height=max(240, min(380, 120 + 9 * len(lengths))), margin=MARGIN | {"t": 12, "b": 32})


def _token_axis(tokens: Sequence[str], first: int) -> dict[str, Any]:
    """Every token's label, or every second, third ... where they would run into each other."""
    step = -(-len(tokens) // LABELS)
    axis = position_axis(tokens)
    return {
        "tickmode": "array",
        "tickvals": [first + i for i in axis["tickvals"][::step]],
        "ticktext": axis["ticktext"][::step],
    }


def _ends(logs: np.ndarray) -> tuple[float, float]:
    low, high = float(logs.min()), float(logs.max())
    return (low, high) if high - low > 0.3 else (low - 0.15, high + 0.15)


def _log_ticks(low: float, high: float) -> dict[str, list[float] | list[str]]:
    """1, 2, 5, 10 ... as far as they lie between the ends: few decades need more marks than many."""
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    values = [step * 10.0**decade for decade in range(int(np.floor(low)), int(np.ceil(high)) + 1) for step in steps]
    inside = [value for value in values if low <= np.log10(value) <= high]
    return {"tickvals": [float(np.log10(value)) for value in inside], "ticktext": [f"{value:,.6g}" for value in inside]}


def layer_lines(
    lines: Mapping[str, PerLayer],
    at: int | None = None,
    *,
    log: bool = False,
    colours: Sequence[str] = SERIES,
    words: Sequence[str] = ("layer", "length"),
) -> go.Figure:
    """One line a quantity over the layers of one token; `at` is the chosen layer. What is not a number is a gap."""
    layer_word, y_word = words
    figure = go.Figure(layout=layout(x=layer_word, y=y_word))
    for i, (name, values) in enumerate(lines.items()):
        hover = f"{layer_word} %{{x}}: %{{y:.3g}}<extra>{plain(name)}</extra>"
        figure.add_scatter(
            x=np.arange(len(values)),
            y=values.astype(np.float32),
            mode="lines+markers",
            name=plain(name),
            line={"color": colours[i % len(colours)], "width": 2},
            marker={"size": 5},
            hovertemplate=hover,
        )
    _mark_layer(figure, at)
    figure.update_xaxes(title=TITLE)
    figure.update_yaxes(type="log" if log else "linear", showgrid=True, dtick=1 if log else None, title=TITLE)
    named = len(lines) > 1
    margin = MARGIN if named else MARGIN | {"t": 12}
    return figure.update_layout(height=300, margin=margin, legend=LEGEND, showlegend=named, hovermode="closest")


def layer_shares(
    shares: Mapping[str, PerLayer],
    start: float | None = None,
    at: int | None = None,
    *,
    colours: Sequence[str] = SERIES,
    words: Sequence[str] = ("layer", "share", "input"),
) -> go.Figure:
    """Stacked bars over the layers, one colour a sublayer; `start` is a bar before the first layer."""
    layer_word, share_word, start_word = words
    figure = go.Figure(layout=layout(x=layer_word, y=share_word))
    n = max(map(len, shares.values()), default=0)
    if start is not None:
        hover = f"{start_word}: %{{y:.3g}}<extra></extra>"
        bar = {"marker_color": SERIES[5], "name": start_word, "hovertemplate": hover}
        figure.add_bar(x=[-1], y=np.array([start], dtype=np.float32), **bar)
    for i, (name, values) in enumerate(shares.items()):
        hover = f"{layer_word} %{{x}}: %{{y:.3g}}<extra>{plain(name)}</extra>"
        look = {"marker_color": colours[i % len(colours)], "name": plain(name), "hovertemplate": hover}
        figure.add_bar(x=np.arange(len(values)), y=values.astype(np.float32), **look)
    _mark_layer(figure, at)
    figure.update_xaxes(range=[-0.7 if start is None else -1.7, n - 0.3], title=TITLE)
    figure.update_yaxes(zeroline=True, showgrid=True, title=TITLE)
    return figure.update_layout(height=280, margin=MARGIN, legend=LEGEND, barmode="relative", bargap=0.3)


def _mark_layer(figure: go.Figure, at: int | None) -> None:
    if at is not None:
        figure.add_vline(x=at, line={"color": SOFT, "width": 1.5, "dash": "dot"}, layer="below")
