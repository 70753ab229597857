"""Pictures of the Step by step tab: why scores are scaled, how alike heads are, what attention costs as texts grow."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import MONO, SERIES, WEIGHT_SCALE, layout, plain

TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 68, "r": 16, "t": 44, "b": 48}
WITH, WITHOUT, THEORY = SERIES[0], SERIES[4], SERIES[5]  # scaled, or fused: accent; without: magenta; a formula: grey
OWN = SERIES[1]  # a real model's heads
BINS = 49
Trace = dict[str, Any]


def dot_products(
    without: Float[np.ndarray, "query key"],
    scaled: Float[np.ndarray, "query key"],
    *,
    words: Sequence[str] = ("q · k", "density", "not scaled", "scaled"),
) -> go.Figure:
    """Histograms of the same dot products, not scaled and scaled, under the normal densities of their variance."""
    x_word, y_word, *names = words
    bars, curves = [], []
    for name, values, color in zip(names, (without, scaled), (WITHOUT, WITH), strict=True):
        deviation = float(values.std()) or 1.0
        density, edges = np.histogram(values, bins=BINS, range=(-4 * deviation, 4 * deviation), density=True)
        middle = ((edges[:-1] + edges[1:]) / 2).astype(np.float32)
        hover = f"%{{x:.3g}}: %{{y:.3g}}<extra>{plain(name)}</extra>"
        look = {"marker": {"color": color, "line": {"width": 0}}, "opacity": 0.55, "width": float(edges[1] - edges[0])}
        named = {"type": "bar", "name": plain(name), "hovertemplate": hover}
        bars.append({**named, **look, "x": middle, "y": density.astype(np.float32)})
        normal = np.exp(-(middle**2) / 2 / deviation**2) / (deviation * (2 * np.pi) ** 0.5)
        curves.append({**_line("", color, 1.5), "x": middle, "y": normal})
    wide = 4 * float(max(without.std(), scaled.std()))
    figure = _figure([*bars, *curves], 320, xaxis={"title": _title(x_word), "range": [-wide, wide]}, yaxis=_y(y_word))
    return figure.update_layout(barmode="overlay", bargap=0)


def variance_by_width(
    d_k: Int[np.ndarray, " width"],
    without: Float[np.ndarray, " width"],
    scaled: Float[np.ndarray, " width"],
    chosen: int,
    own: Mapping[str, tuple[int, Float[np.ndarray, " 3"]]] | None = None,
    *,
    words: Sequence[str] = ("d_k", "variance", "not scaled", "scaled"),
) -> go.Figure:
    """Measured points on the lines of the proof: d_k, and 1. `own`: name -> d_k, (least, median, most) of its heads."""
    x_word, y_word, *names = words
    traces = [
        {**_line("", THEORY, 1.5, dash="dash"), "x": d_k, "y": values}
        for values in (d_k, np.ones(len(d_k), np.float32))
    ]
    for name, (width, (least, median, most)) in (own or {}).items():
        reach = {"type": "data", "symmetric": False, "array": [most - median], "arrayminus": [median - least]}
        marker = {"color": OWN, "size": 9, "symbol": "diamond"}
        hover = f"{x_word} {width}: %{{y:.4g}} ({least:.3g} – {most:.3g})<extra>{plain(name)}</extra>"
        point = {"x": [width], "y": [median], "marker": marker, "error_y": {**reach, "thickness": 2}}
        traces.append({**_points(name, hover), **point})
    for name, values, color in zip(names, (without, scaled), (WITHOUT, WITH), strict=True):
        marker = {"color": color, "size": np.where(d_k == chosen, 13, 8)}
        hover = f"{x_word} %{{x}}: %{{y:.4g}}<extra>{plain(name)}</extra>"
        traces.append({**_points(name, hover), "x": d_k, "y": values, "marker": marker})
    xaxis = {"title": _title(x_word), "type": "log", **_powers(d_k)}
    return _figure(traces, 320, xaxis=xaxis, yaxis={**_y(y_word), "type": "log", "dtick": 1, "exponentformat": "power"})


def softness_by_width(
    d_k: Int[np.ndarray, " width"],
    entropy: Mapping[str, Float[np.ndarray, " width"]],
    gradient: Mapping[str, Float[np.ndarray, "3 width"]],
    chosen: int,
    *,
    words: Sequence[str] = ("d_k", "entropy", "gradient norm"),
) -> go.Figure:
    """Over d_k, without and with the scale: entropy as a share of the most there can be, and below it (low, middle,
    high) of the norm of softmax's derivative. The first name of each mapping is without."""
    traces = []
    for (name, shares), color in zip(entropy.items(), (WITHOUT, WITH), strict=True):
        low, middle, high = gradient[name]
        band = {"type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": color, "opacity": 0.15}
        band |= {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "yaxis": "y2"}
        traces.append({**band, "x": np.concatenate([d_k, d_k[::-1]]), "y": np.concatenate([high, low[::-1]])})
        line = _line(name, color, 2.5, mode="lines+markers")
        traces.append({**line, "x": d_k, "y": shares})
        traces.append({**line, "x": d_k, "y": middle, "yaxis": "y2", "showlegend": False})
    here = {"type": "line", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1, "yref": "paper"}
    figure = _figure(
        traces,
        440,
        xaxis={"title": _title(words[0]), "type": "log", "anchor": "y2", **_powers(d_k)},
        yaxis={**_y(words[1]), "range": [0, 1.02], "domain": [0.56, 1]},
        yaxis2={**_y(words[2]), "type": "log", "exponentformat": "power", "nticks": 6, "domain": [0, 0.46]},
    )
    return figure.update_layout(shapes=[{**here, "line": {"color": THEORY, "width": 1, "dash": "dot"}}])


def head_similarity(
    matrix: Float[np.ndarray, "head head"],
    chosen: int | None = None,
    *,
    words: Sequence[str] = ("head", "similarity"),
) -> go.Figure:
    """Heads against heads, 0 to 1; the chosen one's row and column are framed."""
    head_word, value_word = words
    n = len(matrix)
    heat = {"type": "heatmap", "z": matrix.astype(np.float32), "zmin": 0, "zmax": 1, "xgap": 1, "ygap": 1}
    heat |= {"colorscale": WEIGHT_SCALE, "meta": "weights"}
    heat["hovertemplate"] = f"%{{y}} – %{{x}}: {plain(value_word)} %{{z:.3f}}<extra></extra>"
    heat["colorbar"] = {"thickness": 10, "outlinewidth": 0, "tickfont": TICKS, "ticks": ""}
    axis = {"title": _title(head_word), "dtick": 1 if n <= 20 else 4, "showline": False, "constrain": "domain"}
    yaxis = {**axis, "autorange": "reversed", "scaleanchor": "x"}
    shapes = [] if chosen is None else [_frame(chosen, n, across) for across in (False, True)]
    return _figure([heat], 400, xaxis=axis, yaxis=yaxis).update_layout(margin={**MARGIN, "t": 16}, shapes=shapes)


def _frame(i: int, n: int, across: bool) -> Trace:
    """Around row i (across) or column i of an n x n heatmap."""
    ends, own = (-0.5, n - 0.5), (i - 0.5, i + 0.5)
    (x0, x1), (y0, y1) = (ends, own) if across else (own, ends)
    return {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": {"color": SERIES[0], "width": 2}}


def cost_by_length(
    n: Int[np.ndarray, " size"],
    measured: Mapping[str, Float[np.ndarray, "3 _"]],
    predicted: Float[np.ndarray, " size"],
    *,
    words: Sequence[str] = ("tokens n", "ms", "proportional to n²"),
) -> go.Figure:
    """Points as they are measured, (low, middle, high) of each name for the first sizes; a dashed line beside them."""
    x_word, y_word, line_word = words
    traces = []
    for (name, (low, middle, high)), color in zip(measured.items(), (WITHOUT, WITH), strict=True):
        spread = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
        line = _line(name, color, 2.5, mode="lines+markers")
        traces.append({**line, "x": n[: len(middle)], "y": middle, "error_y": {**spread, "thickness": 1.5}})
    traces.append({**_line(line_word, THEORY, 2.0, dash="dash"), "x": n, "y": predicted, "hoverinfo": "skip"})
    ticks = {"tickmode": "array", "tickvals": n.tolist(), "ticktext": [f"{one:,}" for one in n]}
    xaxis = {"title": _title(x_word), "type": "log", **ticks}
    return _figure(traces, 340, xaxis=xaxis, yaxis={**_y(y_word), "type": "log", "dtick": 1})


# ---- what they share: one layout a figure, because each later change of one costs Plotly milliseconds


def _figure(traces: Iterable[Trace], height: int, **axes: Trace) -> go.Figure:
    base = layout()
    drawn = {name: {**base[name[:5]], "tickfont": TICKS, "ticks": "", **own} for name, own in axes.items()}
    return go.Figure(list(traces), layout={**base, **drawn, "legend": LEGEND, "height": height, "margin": MARGIN})


def _title(text: str) -> Trace:
    return {"text": plain(text), "font": {"size": 13}, "standoff": 10}


def _y(text: str) -> Trace:
    return {"title": _title(text), "showgrid": True}


def _line(name: str, color: str, width: float, *, dash: str = "solid", mode: str = "lines") -> Trace:
    """Without a name it is not in the legend and says nothing."""
    drawn = {"type": "scatter", "mode": mode, "line": {"color": color, "width": width, "dash": dash}}
    if not name:
        return {**drawn, "showlegend": False, "hoverinfo": "skip"}
    return {**drawn, "name": plain(name), "hovertemplate": f"%{{x:,}}: %{{y:.4g}}<extra>{plain(name)}</extra>"}


def _points(name: str, hover: str) -> Trace:
    return {"type": "scatter", "mode": "markers", "name": plain(name), "hovertemplate": hover}


def _powers(d_k: Int[np.ndarray, " width"]) -> Trace:
    """Ticks at every second width, as plain numbers."""
    shown = d_k[::2].tolist()
    return {"tickmode": "array", "tickvals": shown, "ticktext": [f"{one:,}" for one in shown]}
