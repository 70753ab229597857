"""Pictures of what a precision costs and spoils: bytes and speed against FP32 beside what is said of them, and errors.

Bars are measured; hollow diamonds are the article's figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import MONO, SERIES, SOFT, WEIGHT_SCALE, layout, plain

TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 64, "r": 16, "t": 48, "b": 48}
WEIGHTS, PREFILL, DECODE, ERROR, SLOWER = SERIES[2], SERIES[3], SERIES[0], SERIES[1], SERIES[4]


def weight_shares(
    names: Sequence[str],
    shares: Float[np.ndarray, " name"],
    sizes: Sequence[str],
    claims: Mapping[str, float],
    *,
    words: Sequence[str] = ("% of FP32", "measured", "the article"),
) -> go.Figure:
    """Each precision's bytes in percent of FP32's, with its size written under the bar."""
    axis_word, measured, said = words
    bar = {"type": "bar", "name": plain(measured), "x": list(map(plain, names)), "y": shares, "cliponaxis": False}
    hover = f"%{{x}}: %{{y:.3g}} %<extra>{plain(measured)}</extra>"
    bars = {**bar, "marker": {"color": WEIGHTS}, "hovertemplate": hover, "width": 0.62}
    figure = _figure([bars, _said(claims, said, "%{x}: %{y:.3g} %")], axis_word, top=104.0)
    under = [f"{plain(name)}<br>{plain(size).replace(' ', '<br>')}" for name, size in zip(names, sizes, strict=True)]
    figure.update_xaxes(tickvals=bars["x"], ticktext=under, tickangle=0, tickfont={"size": 11.5})
    return figure.update_layout(margin={**MARGIN, "b": 68})


def speeds(
    names: Sequence[str],
    measured: Mapping[str, Float[np.ndarray, "3 name"]],
    claims: Mapping[str, float],
    *,
    words: Sequence[str] = ("times FP32", "the article"),
) -> go.Figure:
    """(low, median, high) of each precision's speed against FP32's, a bar a phase; below the line at 1 it is slower."""
    axis_word, said = words
    largest = max([1.0, *claims.values(), *(float(np.nanmax(high)) for _, _, high in measured.values() if high.size)])
    traces = []
    for (name, (low, middle, high)), color in zip(measured.items(), (PREFILL, DECODE), strict=False):
        labels = [f"{value:.2f}x" if np.isfinite(value) else "" for value in middle]
        places = ["outside" if value < 0.2 * largest else "inside" for value in middle]  # where there is room for it
        spread = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
        bar = {"type": "bar", "name": plain(name), "x": list(map(plain, names)), "y": middle, "cliponaxis": False}
        text = {"text": labels, "textposition": places, "insidetextanchor": "start", "textangle": -90}
        fonts = {"insidetextfont": {"size": 12, "color": "#ffffff"}, "outsidetextfont": {"size": 12, "color": SLOWER}}
        hover = f"%{{x}}: %{{y:.2f}}x<extra>{plain(name)}</extra>"
        shown = {"marker": {"color": color}, "hovertemplate": hover, "error_y": {**spread, "color": SOFT, "width": 3}}
        traces.append({**bar, **text, **shown, **fonts, "constraintext": "none"})
    figure = _figure([*traces, _said(claims, said, "%{x}: %{y:.2g}x")], axis_word, top=1.08 * largest)
    line = {"color": SOFT, "width": 1.5, "dash": "dot"}
    return figure.add_shape(type="line", x0=0, x1=1, xref="paper", y0=1, y1=1, line=line)


def losses(
    names: Sequence[str],
    values: Float[np.ndarray, " name"],
    texts: Sequence[str],
    *,
    words: Sequence[str] = ("KL(FP32 || it), nats",),
) -> go.Figure:
    """How far each precision's output is from FP32's, on a logarithmic axis; what is not above 0 has no bar."""
    shown = np.where(values > 0, values, np.nan)
    bar = {"type": "bar", "x": list(map(plain, names)), "y": shown, "width": 0.62}
    bar |= {"cliponaxis": False, "constraintext": "none"}
    text = {"text": [plain(one) for one in texts], "textposition": "outside", "textfont": {"size": 12}}
    hover = "%{x}: %{y:.3g}<extra></extra>"
    figure = _figure([{**bar, **text, "marker": {"color": ERROR}, "hovertemplate": hover}], words[0])
    there = shown[np.isfinite(shown)]
    low, high = (np.log10(there.min()), np.log10(there.max())) if there.size else (-4.0, 0.0)
    ends = [float(np.floor(low - 0.3)), float(high + 0.12 * max(1.0, high - low + 1) + 0.1)]
    figure.update_layout(showlegend=False, margin={**MARGIN, "l": 80, "t": 24})
    return figure.update_yaxes(type="log", range=ends, dtick=1, exponentformat="power")


def head_divergence(
    apart: Float[np.ndarray, "layer head"],
    chosen: tuple[int, int] | None = None,
    *,
    words: Sequence[str] = ("head", "layer", "% moved"),
) -> go.Figure:
    """In percent, how much of each head's weight lies on other keys than in FP32; a frame around the chosen head."""
    head_word, layer_word, bar_word = words
    hover = f"{plain(layer_word)} %{{y}}, {plain(head_word)} %{{x}}: %{{z:.3g}} %<extra></extra>"
    bar = {
        "title": {"text": plain(bar_word), "side": "right", "font": {"size": 12}},
        "thickness": 10,
        "outlinewidth": 0,
    }
    cells = {"type": "heatmap", "z": 100 * apart, "colorscale": WEIGHT_SCALE, "meta": "weights", "zmin": 0}
    base = layout(x=head_word, y=layer_word)
    axis = {"tickfont": TICKS, "ticks": "", "tickformat": "d"}
    n_layers, n_heads = apart.shape
    x = {**base["xaxis"], **axis, "dtick": max(1, n_heads // 12), "range": [-0.5, n_heads - 0.5]}
    y = {**base["yaxis"], **axis, "dtick": max(1, n_layers // 10), "range": [n_layers - 0.5, -0.5]}
    height = {"height": int(np.clip(110 + 12 * n_layers, 260, 460)), "margin": {**MARGIN, "l": 52, "t": 16}}
    figure = go.Figure(
        [{**cells, "hovertemplate": hover, "colorbar": bar, "hoverongaps": False}],
        layout={**base, "xaxis": x, "yaxis": y, **height},
    )
    if chosen is not None:
        layer, head = chosen
        box = {"x0": head - 0.5, "x1": head + 0.5, "y0": layer - 0.5, "y1": layer + 0.5}
        figure.add_shape(type="rect", **box, line={"color": SERIES[1], "width": 2.5})
    return figure


# ---- what they share


def _said(claims: Mapping[str, float], name: str, hover: str) -> dict[str, Any]:
    marker = {"symbol": "diamond-open", "size": 11, "color": SERIES[4], "line": {"width": 2}}
    at = {"x": list(map(plain, claims)), "y": np.array(list(claims.values()), dtype=np.float32)}
    shown = {"type": "scatter", "mode": "markers", "name": plain(name), "marker": marker, "cliponaxis": False}
    return {**shown, **at, "hovertemplate": f"{hover}<extra>{plain(name)}</extra>"}


def _figure(traces: Sequence[dict[str, Any]], y: str, top: float | None = None) -> go.Figure:
    base = layout(y=y)
    x_axis = {**base["xaxis"], "type": "category", "tickfont": TICKS, "ticks": "", "title": None}
    y_axis = {**base["yaxis"], "tickfont": TICKS, "ticks": "", "showgrid": True}
    if top is not None:
        y_axis["range"] = [0, top]
    looks = {"legend": LEGEND, "height": 330, "margin": MARGIN, "barmode": "group", "bargap": 0.22, "bargroupgap": 0.06}
    return go.Figure(list(traces), layout={**base, **looks, "xaxis": x_axis, "yaxis": y_axis})
