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
LABELS = 48  # of tokens on a wide axis
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}}
TITLED, BARE = {"l": 56, "r": 12, "t": 40, "b": 48}, {"l": 56, "r": 12, "t": 12, "b": 48}  # margins: a legend, or none


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
    lines = []
    for i, (name, y) in enumerate(sorted(curves.items(), key=lambda one: one[0] == own)):
        line = STRONG if name == own else {"color": SOFT, "width": 1.5, "dash": DASHES[i % len(DASHES)]}
        lines.append(_line(name, x, y, line, f"{plain(name)}: %{{y:.3g}}<extra></extra>"))
    if units is not None:
        marker = {"color": QUERY, "size": 7, "opacity": 0.25}
        lines.append(_points(units, np.interp(units, x, curves[own]), units_word, marker))
    if mark is not None:
        marker = {"color": QUERY, "size": 11, "line": {"color": "#ffffff", "width": 1.5}}
        lines.append(_points(np.array([mark]), np.interp([mark], x, curves[own]), mark_word, marker))
    ends = [float(x[0]), float(x[-1])]
    return _figure(lines, (x_word, y_word), x={"zeroline": True, "range": ends}, y={"zeroline": True}, height=300)


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
    ticks = _log_ticks(low, high)
    bar = {"title": {"text": length_word, "side": "right", "font": {"size": 12}}, "thickness": 10, "outlinewidth": 0}
    cells = {
        "type": "heatmap",
        "z": logs,
        "x0": first,
        "dx": 1,
        "customdata": lengths.astype(np.float32),
        "zmin": low,
        "zmax": high,
        "colorscale": WEIGHT_SCALE,
        "meta": "weights",
        "colorbar": {**bar, "tickvals": [float(np.log10(value)) for value in ticks], "ticktext": [*ticks.values()]},
        "hovertemplate": f"{layer_word} %{{y}}, %{{x}}: %{{customdata:.3g}}<extra></extra>",
    }
    frame: dict[str, Any] = {"type": "rect", "line": {"color": QUERY, "width": 2}}
    if at is not None:
        frame |= {"x0": at[1] - 0.5, "x1": at[1] + 0.5, "y0": at[0] - 0.5, "y1": at[0] + 0.5}
    return _figure(
        [cells],
        ("", layer_word),
        x=_token_axis(tokens, first),
        y=_layer_ticks(len(lengths)),
        shapes=[frame] if at is not None else [],
        height=max(240, min(380, 120 + 9 * len(lengths))),
        margin=BARE | {"b": 32},
    )


def layer_lines(
    lines: Mapping[str, PerLayer],
    at: int | None = None,
    *,
    log: bool = False,
    colours: Sequence[str] = SERIES,
    words: Sequence[str] = ("layer", "length"),
) -> go.Figure:
    """One line a quantity over the layers of one token; `at` is the chosen layer. What is not a number is a gap."""
    drawn = []
    for i, (name, values) in enumerate(lines.items()):
        line = {"color": colours[i % len(colours)], "width": 2}
        hover = f"{words[0]} %{{x}}: %{{y:.3g}}<extra>{plain(name)}</extra>"
        one = _line(name, np.arange(len(values)), values, line, hover)
        drawn.append({**one, "mode": "lines+markers", "marker": {"size": 5}})
    scale = _log_axis(np.concatenate([*lines.values(), []])) if log else {}
    steps = _layer_ticks(max(map(len, lines.values()), default=0))
    return _figure(drawn, words, x=steps, y={"showgrid": True, **scale}, shapes=_marked(at), height=300)


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
    n = max(map(len, shares.values()), default=0)
    bars = []
    if start is not None:
        bars.append(_bar(start_word, np.array([-1]), np.array([start]), SERIES[5], f"{plain(start_word)}: %{{y:.3g}}"))
    for i, (name, values) in enumerate(shares.items()):
        hover = f"{plain(name)}, {layer_word} %{{x}}: %{{y:.3g}}"
        bars.append(_bar(name, np.arange(len(values)), values, colours[i % len(colours)], hover))
    ends = {"range": [-0.7 if start is None else -1.7, n - 0.3], **_layer_ticks(n)}
    look = {"barmode": "relative", "bargap": 0.3, "showlegend": True}
    y = {"zeroline": True, "showgrid": True}
    return _figure(bars, (layer_word, share_word), x=ends, y=y, shapes=_marked(at), height=280, **look)


# ---- parts, as the dictionaries that Plotly reads; a figure is made of them in one go, which is what is fast


def _figure(
    traces: Sequence[dict[str, Any]],
    titles: Sequence[str],
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **look: Any,
) -> go.Figure:
    base = layout(x=titles[0], y=titles[1])
    for name, more in (("xaxis", x), ("yaxis", y)):
        base[name] = {**base[name], "title": {**base[name]["title"], "standoff": 8}, **(more or {})}
    named = len(traces) > 1
    own = {"legend": LEGEND, "showlegend": named, "hovermode": "closest", "margin": TITLED if named else BARE}
    return go.Figure({"data": list(traces), "layout": {**base, **own, **look}})


def _line(name: str, x: np.ndarray, y: np.ndarray, line: Mapping[str, Any], hover: str) -> dict[str, Any]:
    values = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    return {"type": "scatter", "mode": "lines", "name": plain(name), **values, "line": line, "hovertemplate": hover}


def _points(x: np.ndarray, y: np.ndarray, name: str, marker: Mapping[str, Any]) -> dict[str, Any]:
    hover = f"{plain(name)}: %{{x:.3g}} → %{{y:.3g}}<extra></extra>"
    return {**_line(name, x, y, {}, hover), "mode": "markers", "marker": marker}


def _bar(name: str, x: np.ndarray, y: np.ndarray, colour: str, hover: str) -> dict[str, Any]:
    values = {"x": x.astype(np.float32), "y": y.astype(np.float32), "marker": {"color": colour}}
    return {"type": "bar", "name": plain(name), **values, "hovertemplate": f"{hover}<extra></extra>"}


def _marked(at: int | None) -> list[dict[str, Any]]:
    """A line through the chosen layer."""
    line = {"color": SOFT, "width": 1.5, "dash": "dot"}
    ends = {"x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
    return [] if at is None else [{"type": "line", "layer": "below", "line": line, **ends}]


def _token_axis(tokens: Sequence[str], first: int) -> dict[str, Any]:
    """Every token's label, or every second, third ... where they would run into each other."""
    step = -(-len(tokens) // LABELS)
    axis = position_axis(tokens)
    places = [first + i for i in axis["tickvals"][::step]]
    return {**axis, "tickvals": places, "ticktext": axis["ticktext"][::step], "autotickangles": [0, 60, 90]}


def _log_axis(values: np.ndarray) -> dict[str, Any]:
    shown = values[values > 0]
    if not len(shown):
        return {"type": "log"}
    ticks = _log_ticks(*_ends(np.log10(shown)))
    return {"type": "log", "tickvals": [*ticks], "ticktext": [*ticks.values()]}


def _layer_ticks(n: int) -> dict[str, Any]:
    """Whole layers only."""
    return {"tick0": 0, "dtick": next((step for step in (1, 2, 5, 10) if n <= 9 * step), 20)}


def _ends(logs: np.ndarray) -> tuple[float, float]:
    low, high = float(logs.min()), float(logs.max())
    return (low, high) if high - low > 0.3 else (low - 0.15, high + 0.15)


def _log_ticks(low: float, high: float) -> dict[float, str]:
    """Round values between 10^low and 10^high: the narrower they lie, the more of each decade."""
    steps = (1, 2, 3, 4, 5, 6, 7, 8, 9) if high - low < 0.8 else (1, 2, 5) if high - low < 2.5 else (1,)
    values = [step * 10.0**decade for decade in range(int(np.floor(low)), int(np.ceil(high)) + 1) for step in steps]
    return {value: f"{value:,.6g}" for value in values if low <= np.log10(value) <= high}
