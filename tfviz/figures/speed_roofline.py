"""Pictures of a roofline: limits of a machine and the parts of a model under them; predicted against measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import MONO, SERIES, layout, plain

TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 76, "r": 16, "t": 64, "b": 52}
LOOKS = (("circle", SERIES[0]), ("diamond", SERIES[4]), ("square", SERIES[3]), ("star", SERIES[2]), ("x", SERIES[5]))
GREY = SERIES[5]
DASHES = ("solid", "dash", "dot", "dashdot")
Trace = dict[str, Any]


@dataclass(frozen=True)
class PartPoints:
    """The points of one kind of part: `hollow` those of a decode step, the others of a prefill."""

    name: str
    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]
    hollow: Sequence[bool]
    hover: Sequence[str]  # plain text


def roofline(
    parts: Sequence[PartPoints],
    bandwidths: Mapping[str, float],
    peaks: Mapping[str, float],
    *,
    words: Sequence[str] = ("FLOP/byte", "FLOP/s"),
) -> go.Figure:
    """min(peak, intensity x bandwidth): a slope for each bandwidth in B/s up to the highest peak, a flat line for each
    peak in FLOP/s from where the widest bandwidth reaches it."""
    every = [float(one) for part in parts for one in part.x]
    low, high = min([0.05, *(one / 2 for one in every)]), max([1000.0, *(one * 2 for one in every)])
    top, widest = max(peaks.values(), default=0.0), max(bandwidths.values(), default=0.0)
    traces: list[Trace] = []
    for (name, speed), dash in zip(bandwidths.items(), DASHES, strict=False):
        end = top / speed if top else high
        line: Trace = {"mode": "lines+text", "line": {"color": GREY, "width": 1.6, "dash": dash}, "name": plain(name)}
        x = np.array([low, np.sqrt(low * end), end], dtype=np.float64)
        above = speed == widest  # its name stands above it, the others' below, where they begin
        line |= {"text": ["", plain(name), ""] if above else [plain(name), "", ""], "textfont": {"size": 12}}
        line |= {"textposition": "middle left" if above else "bottom right", "showlegend": False}
        traces.append({"type": "scatter", **line, "x": x, "y": x * speed, "hoverinfo": "name"})
    for name, peak in peaks.items():
        start = peak / widest if widest else low
        flat: Trace = {
            "mode": "lines+text",
            "line": {"color": GREY, "width": 1.6},
            "name": plain(name),
            "showlegend": False,
        }
        label: Trace = {"text": ["", plain(name)], "textposition": "top left", "textfont": {"size": 12}}
        ends = {"x": np.array([start, high]), "y": np.full(2, peak)}
        traces.append({"type": "scatter", **flat, **label, **ends, "hoverinfo": "name"})
    traces += _points(parts)
    return _figure(traces, 400, _log(words[0]), _log(words[1]))


def part_scatter(
    parts: Sequence[PartPoints],
    *,
    words: Sequence[str] = ("measured", "predicted", "equal"),
    diagonal: float | None = 1.0,
    band: float = 0.0,
) -> go.Figure:
    """Points on logarithmic axes of one unit, with the diagonal y = `diagonal` x and a band of +- `band` around it."""
    every = [float(one) for part in parts for one in (*part.x, *part.y) if one > 0]
    traces: list[Trace] = []
    if diagonal is not None and every:
        x = np.array([min(every) / 2, max(every) * 2])
        if band:
            around: Trace = {
                "x": np.concatenate([x, x[::-1]]),
                "hoverinfo": "skip",
                "showlegend": False,
                "mode": "lines",
            }
            edges = np.concatenate([x * diagonal * (1 + band), x[::-1] * diagonal * (1 - band)])
            shade = {"fill": "toself", "fillcolor": "rgba(124,138,165,0.15)", "line": {"width": 0}}
            traces.append({"type": "scatter", **around, **shade, "y": edges})
        line: Trace = {"mode": "lines", "line": {"color": GREY, "width": 1.5, "dash": "dash"}, "name": plain(words[2])}
        traces.append({"type": "scatter", **line, "x": x, "y": x * diagonal, "hoverinfo": "skip"})
    traces += _points(parts)
    return _figure(traces, 400, _log(words[0]), _log(words[1]))


def _points(parts: Sequence[PartPoints]) -> list[Trace]:
    """A symbol and colour for each kind of part; a decode step's are hollow."""
    traces: list[Trace] = []
    for part, (symbol, color) in zip(parts, LOOKS, strict=False):
        symbols = [f"{symbol}-open" if hollow else symbol for hollow in part.hollow]
        marker = {"color": color, "size": 11, "symbol": symbols, "line": {"width": 2, "color": color}}
        told = {
            "text": [plain(one).replace("\n", "<br>") for one in part.hover],
            "hovertemplate": "%{text}<extra></extra>",
        }
        at = {"x": part.x, "y": part.y, "name": plain(part.name), "mode": "markers"}
        traces.append({"type": "scatter", **at, "marker": marker, **told, "showlegend": False})
        key = {"mode": "markers", "marker": {"color": color, "size": 10, "symbol": symbol}, "name": plain(part.name)}
        traces.append({"type": "scatter", "x": [None], "y": [None], **key, "hoverinfo": "skip"})
    return traces


def _figure(traces: Sequence[Trace], height: int, x: Trace, y: Trace) -> go.Figure:
    base = layout()
    drawn = {"xaxis": {**base["xaxis"], "tickfont": TICKS, **x}, "yaxis": {**base["yaxis"], "tickfont": TICKS, **y}}
    return go.Figure(list(traces), layout={**base, **drawn, "legend": LEGEND, "height": height, "margin": MARGIN})


def _log(text: str) -> Trace:
    title = {"text": plain(text), "font": {"size": 13}, "standoff": 10}
    return {"title": title, "type": "log", "dtick": 1, "exponentformat": "power", "showgrid": True}
