"""Pictures of a quantised matrix: where its levels lie, how far weights are off, what it costs the layer's output."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import MONO, SERIES, layout, plain

TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 64, "r": 16, "t": 48, "b": 48}
HEIGHT = 320
SOFT = SERIES[5]
COLOURS = (SERIES[5], SERIES[0], SERIES[3])  # of the three methods: rounding, GPTQ, AWQ
RUGS = (SERIES[2], SERIES[0], SERIES[1])  # levels of a fine, a middling and a coarse part
MARK = "#d97706"
Trace = dict[str, Any]


def level_histogram(
    edges: Float[np.ndarray, " edge"],
    counts: Float[np.ndarray, " bin"],
    levels: Mapping[str, Float[np.ndarray, " level"]],
    *,
    words: Sequence[str] = ("weight", "weights"),
) -> go.Figure:
    """How often each value occurs, and under it the levels of a few parts as ticks, a row each."""
    x_word, y_word = words
    top = float(counts.max()) if len(counts) else 1.0
    middles = (edges[:-1] + edges[1:]) / 2
    hover = f"%{{x:.3g}}: %{{y:,}}<extra>{plain(y_word)}</extra>"
    look = {"line": {"width": 0, "shape": "hvh"}, "fill": "tozeroy", "fillcolor": "rgba(124,138,165,0.55)"}
    area: Trace = {"type": "scatter", "mode": "lines", **look, "showlegend": False, "hovertemplate": hover}
    traces: list[Trace] = [{**area, "x": middles, "y": counts}]
    for i, (name, values) in enumerate(levels.items()):
        line = {"width": 1.5, "color": RUGS[i % len(RUGS)]}
        drawn: Trace = {"type": "scatter", "mode": "lines", "name": plain(name), "line": line}
        x, y_of = _ticks(values, -(0.09 + 0.11 * i) * top, 0.04 * top)
        traces.append({**drawn, "x": x, "y": y_of, "hovertemplate": f"%{{x:.4g}}<extra>{plain(name)}</extra>"})
    y = {"range": [-(0.06 + 0.11 * len(levels)) * top, 1.05 * top], "showticklabels": False}
    return _figure(traces, {**_axis(x_word), "range": [float(edges[0]), float(edges[-1])]}, {**_axis(y_word), **y})


def _ticks(
    at: Float[np.ndarray, " level"], middle: float, half: float
) -> tuple[Float[np.ndarray, " end"], Float[np.ndarray, " end"]]:
    """Short upright lines as one path, a gap after each: 256 levels as marks of their own take long to draw."""
    x = np.stack([at, at, np.full(len(at), np.nan)], 1).astype(np.float32)
    y = np.broadcast_to(np.array([middle - half, middle + half, np.nan], np.float32), x.shape)
    return x.ravel(), y.ravel()


def error_histogram(
    edges: Float[np.ndarray, " edge"],
    counts: Mapping[str, Float[np.ndarray, " bin"]],
    half: float | None = None,
    *,
    words: Sequence[str] = ("error", "weights", "half a step"),
) -> go.Figure:
    """How many weights are off by how much, a line a method; `half` a step to both sides is marked."""
    x_word, y_word, half_word = words
    middles = (edges[:-1] + edges[1:]) / 2
    traces = []
    for (name, values), color in zip(counts.items(), COLOURS, strict=False):
        line = {"color": color, "width": 2, "shape": "hvh"}
        hover = f"%{{x:.3g}}: %{{y:,}}<extra>{plain(name)}</extra>"
        drawn = {"type": "scatter", "mode": "lines", "name": plain(name), "line": line, "x": middles, "y": values}
        traces.append({**drawn, "hovertemplate": hover})
    figure = _figure(traces, _axis(x_word), {**_axis(y_word), "rangemode": "tozero", "showgrid": True})
    if half is None:
        return figure
    line = {"color": SOFT, "width": 1.5, "dash": "dot"}
    marks = [{"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line} for x in (-half, half)]
    said = {"x": half, "y": 1, "yref": "paper", "text": plain(half_word), "showarrow": False}
    return figure.update_layout(shapes=marks, annotations=[{**said, "xanchor": "left", "yanchor": "top", "xshift": 4}])


def bits_curve(
    bits: Int[np.ndarray, " width"],
    errors: Mapping[str, Float[np.ndarray, "2 width"]],
    at: int | None = None,
    *,
    words: Sequence[str] = ("bits", "output error, %", "on the calibration text"),
) -> go.Figure:
    """(held out, calibration) output errors in percent against the bits, a colour a method; `at` is the chosen one."""
    x_word, y_word, seen_word = words
    traces: list[Trace] = []
    named = list(zip(errors.items(), COLOURS, strict=False))
    for (name, (held_out, _)), color in named:
        hover = f"%{{x}}: %{{y:.3g}} %<extra>{plain(name)}</extra>"
        line = {"color": color, "width": 2.5}
        drawn = {"type": "scatter", "mode": "lines+markers", "name": plain(name), "line": line, "hovertemplate": hover}
        traces.append({**drawn, "x": bits, "y": _shown(held_out)})
    for (name, (_, seen)), color in named:
        hover = f"%{{x}}: %{{y:.3g}} %<extra>{plain(name)}, {plain(seen_word)}</extra>"
        line = {"color": color, "width": 1.5, "dash": "dot"}
        traces.append(
            {"type": "scatter", "mode": "lines", "line": line, "showlegend": False, "hovertemplate": hover}
            | {"name": plain(f"{name}, {seen_word}"), "x": bits, "y": _shown(seen)}
        )
    empty: Trace = {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": SOFT, "width": 1.5, "dash": "dot"},
        "x": [None],
    }
    traces.append({**empty, "y": [None], "name": plain(seen_word), "hoverinfo": "skip"})
    x = {**_axis(x_word), "tickmode": "array", "tickvals": [*bits], "range": [max(bits) + 0.4, min(bits) - 0.4]}
    figure = _figure(traces, x, {**_axis(y_word), "type": "log", "showgrid": True, "dtick": 1})
    if at is None:
        return figure
    line = {"color": MARK, "width": 1.5}
    return figure.update_layout(
        shapes=[{"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}]
    )


def input_channels(
    sizes: Float[np.ndarray, " channel"],
    marked: Int[np.ndarray, " mark"],
    *,
    words: Sequence[str] = ("input channel", "largest |x|", "channels", "the largest"),
) -> go.Figure:
    """The largest activation of each channel, as thin bars; `marked` ones are dots."""
    x_word, y_word, all_word, marked_word = words
    channels = np.arange(len(sizes))
    hover = f"{plain(x_word)} %{{x}}: %{{y:.3g}}"
    line = {"color": SERIES[2], "width": 1, "shape": "hvh"}
    area = {"type": "scatter", "mode": "lines", "fill": "tozeroy", "fillcolor": "rgba(14,159,184,0.25)", "line": line}
    dots = {"type": "scatter", "mode": "markers", "marker": {"color": MARK, "size": 8}, "name": plain(marked_word)}
    traces = [
        {**area, "x": channels, "y": sizes, "name": plain(all_word), "hovertemplate": f"{hover}<extra></extra>"},
        {**dots, "x": marked, "y": sizes[marked], "hovertemplate": f"{hover}<extra>{plain(marked_word)}</extra>"},
    ]
    return _figure(traces, _axis(x_word), {**_axis(y_word), "rangemode": "tozero", "showgrid": True})


def _shown(errors: Float[np.ndarray, " width"]) -> Float[np.ndarray, " width"]:
    """A logarithmic axis has no place for what is exact, or so nearly."""
    return np.where(errors > 1e-4, errors, np.nan).astype(np.float32)


def _axis(text: str) -> Trace:
    return {"title": {"text": plain(text), "font": {"size": 13}, "standoff": 10}}


def _figure(traces: Sequence[Trace], x: Trace, y: Trace) -> go.Figure:
    base = layout()
    axes = {name: {**base[name], "tickfont": TICKS, "ticks": "", **own} for name, own in (("xaxis", x), ("yaxis", y))}
    look = {"height": HEIGHT, "margin": MARGIN, "legend": LEGEND, "bargap": 0}
    return go.Figure(list(traces), layout={**base, **axes, **look})
