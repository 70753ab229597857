"""Pictures of what a KV cache saves: time, multiply-adds and memory of a decode step against its context."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import MONO, SERIES, layout, plain

TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 72, "r": 16, "t": 52, "b": 48}
WITH, WITHOUT, THEORY, MEMORY = SERIES[0], SERIES[4], SERIES[5], SERIES[2]
Trace = dict[str, Any]


def step_times(
    n: Int[np.ndarray, " size"],
    measured: Mapping[str, Float[np.ndarray, "3 size"]],
    fitted: Mapping[str, tuple[Int[np.ndarray, " used"], Float[np.ndarray, " used"]]],
    crossing: float | None = None,
    *,
    words: Sequence[str] = ("context n", "ms a step", "crossing"),
) -> go.Figure:
    """(low, median, high) of the two ways, with and without, on logarithmic axes; under them their fitted lines over
    the contexts that were used; a dotted line where they cross."""
    x_word, y_word, crossing_word = words
    traces = []
    for name, (contexts, values) in fitted.items():
        color = WITH if name == next(iter(measured)) else WITHOUT
        line = {"color": color, "width": 8}
        drawn = {"type": "scatter", "mode": "lines", "line": line, "opacity": 0.22, "showlegend": False}
        traces.append({**drawn, "x": contexts, "y": values, "hoverinfo": "skip"})
    for (name, (low, middle, high)), color in zip(measured.items(), (WITH, WITHOUT), strict=True):
        spread = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
        line = _line(name, color, 2.5, mode="lines+markers")
        traces.append({**line, "x": n, "y": middle, "error_y": {**spread, "thickness": 1.5}})
    shapes, notes = [], []
    if crossing is not None:
        line = {"color": THEORY, "width": 1.5, "dash": "dot"}
        shapes.append({"type": "line", "x0": crossing, "x1": crossing, "y0": 0, "y1": 1, "yref": "paper", "line": line})
        note = {"x": float(np.log10(crossing)), "y": 1, "yref": "paper", "text": plain(crossing_word)}
        notes.append({**note, "showarrow": False, "xanchor": "left", "yanchor": "top", "xshift": 4})
    figure = _figure(traces, 340, xaxis=_contexts(x_word, n), yaxis=_log(y_word))
    return figure.update_layout(shapes=shapes, annotations=notes)


def step_work(
    n: Int[np.ndarray, " size"],
    predicted: Mapping[str, Float[np.ndarray, "2 size"]],
    *,
    words: Sequence[str] = ("context n", "multiply-adds a step", "of them attention"),
) -> go.Figure:
    """(all, attention alone) of the two ways, with and without, by the formula, on logarithmic axes."""
    x_word, y_word, attention_word = words
    traces = []
    for (name, (every, _)), color in zip(predicted.items(), (WITH, WITHOUT), strict=True):
        traces.append({**_line(name, color, 2.5), "x": n, "y": every})
    for (name, (_, attention)), color in zip(predicted.items(), (WITH, WITHOUT), strict=True):
        thin = _line(f"{name}, {attention_word}", color, 1.5, dash="dot")
        traces.append({**thin, "x": n, "y": attention, "showlegend": False})
    dotted = {**_line(attention_word, THEORY, 1.5, dash="dot"), "x": [None], "y": [None]}
    traces.append({**dotted, "hoverinfo": "skip"})
    return _figure(traces, 340, xaxis=_contexts(x_word, n), yaxis=_log(y_word))


def time_areas(
    n: Int[np.ndarray, " size"],
    seconds: Mapping[str, Float[np.ndarray, " size"]],
    *,
    words: Sequence[str] = ("token number", "ms"),
) -> go.Figure:
    """Each token's milliseconds, one after another, on plain axes: an area is the time that the whole text takes."""
    x_word, y_word = words
    traces = []
    for (name, values), color in reversed(list(zip(seconds.items(), (WITH, WITHOUT), strict=True))):
        area = {**_line(name, color, 2.0), "fill": "tozeroy", "fillcolor": _soft(color)}
        traces.append({**area, "x": n, "y": values})
    y = {**_y(y_word), "rangemode": "tozero"}
    return _figure(traces, 340, xaxis={"title": _title(x_word)}, yaxis=y)


def cache_memory(
    n: Int[np.ndarray, " size"],
    predicted: Float[np.ndarray, " size"],
    measured: tuple[Int[np.ndarray, " point"], Float[np.ndarray, " point"]],
    weights: float,
    *,
    words: Sequence[str] = ("context n", "MiB", "by the formula", "measured", "the model's weights"),
) -> go.Figure:
    """The cache's size by the formula as a line, measured as points, and the weights' size across, on log axes."""
    x_word, y_word, formula_word, measured_word, weights_word = words
    traces = [{**_line(formula_word, MEMORY, 2.0), "x": n, "y": predicted}]
    hover = f"%{{x:,}}: %{{y:.4g}}<extra>{plain(measured_word)}</extra>"
    points = {"type": "scatter", "mode": "markers", "name": plain(measured_word), "hovertemplate": hover}
    traces.append({**points, "x": measured[0], "y": measured[1], "marker": {"color": MEMORY, "size": 9}})
    across = {**_line(weights_word, THEORY, 1.5, dash="dash"), "x": n[[0, -1]]}
    traces.append({**across, "y": np.full(2, weights, dtype=np.float32)})
    return _figure(traces, 340, xaxis=_contexts(x_word, n), yaxis=_log(y_word))


# ---- what they share


def _figure(traces: Iterable[Trace], height: int, **axes: Trace) -> go.Figure:
    base = layout()
    drawn = {name: {**base[name[:5]], "tickfont": TICKS, "ticks": "", **own} for name, own in axes.items()}
    return go.Figure(list(traces), layout={**base, **drawn, "legend": LEGEND, "height": height, "margin": MARGIN})


def _title(text: str) -> Trace:
    return {"text": plain(text), "font": {"size": 13}, "standoff": 10}


def _y(text: str) -> Trace:
    return {"title": _title(text), "showgrid": True}


def _log(text: str) -> Trace:
    return {**_y(text), "type": "log", "dtick": 1, "exponentformat": "power"}


def _contexts(text: str, n: Int[np.ndarray, " size"]) -> Trace:
    """A logarithmic axis with powers of two as plain numbers, at most eight of them."""
    powers = [2**i for i in range(32) if n[0] <= 2**i <= n[-1]]
    shown = powers[:: max(1, -(-len(powers) // 8))]
    ticks = {"tickmode": "array", "tickvals": shown, "ticktext": [f"{one:,}" for one in shown]}
    return {"title": _title(text), "type": "log", **ticks}


def _line(name: str, color: str, width: float, *, dash: str = "solid", mode: str = "lines") -> Trace:
    drawn = {"type": "scatter", "mode": mode, "line": {"color": color, "width": width, "dash": dash}}
    return {**drawn, "name": plain(name), "hovertemplate": f"%{{x:,}}: %{{y:.4g}}<extra>{plain(name)}</extra>"}


def _soft(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"
