"""Pictures of what attention moves through slow memory, by formula: so every line is dashed and every bar hollow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import MONO, SERIES, layout, plain

TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
TILED, NAIVE, LEAST = SERIES[0], SERIES[4], SERIES[5]
PARTS = {  # query warm, key and value cool, output accent; the matrices that tiled does not have
    "q": SERIES[1], "k": SERIES[2], "v": SERIES[3], "o": SERIES[0],
    "s_write": SERIES[4], "s_read": SERIES[4], "p_write": SERIES[5], "p_read": SERIES[5],
}  # fmt: skip
UNITS = ("B", "KiB", "MiB", "GiB")


def traffic_parts(moved: Mapping[str, Mapping[str, int]], names: Mapping[str, str]) -> go.Figure:
    """One bar a form (its name -> part -> bytes), piece by piece; `names` of the parts, in the order they are drawn."""
    most = max(sum(parts.values()) for parts in moved.values())
    unit, scale = _unit(most)
    ways = list(reversed(list(moved)))  # the first one on top
    bars = []
    for part, color in PARTS.items():
        sizes = np.array([moved[way].get(part, 0) for way in ways], dtype=np.float64) / scale
        bar = {
            "type": "bar",
            "orientation": "h",
            "name": plain(names[part]),
            "y": [plain(way) for way in ways],
            "x": sizes,
        }
        marker = {"color": _soft(color), "line": {"color": color, "width": 1.5}}
        if part.endswith("read"):
            marker["pattern"] = {"shape": "/", "fgcolor": color, "size": 5, "solidity": 0.25}
        hover = f"%{{y}}<br>{plain(names[part])}: %{{x:,.3~g}} {unit}<extra></extra>"
        bars.append({**bar, "marker": marker, "hovertemplate": hover})
    x = {"title": _title(unit), "showgrid": True, "rangemode": "tozero"}
    figure = _figure(bars, 230, xaxis=x, yaxis={"ticks": ""})
    return figure.update_layout(barmode="stack", bargap=0.35, legend={**LEGEND, "traceorder": "normal"})


def traffic_lines(
    n: Int[np.ndarray, " size"],
    moved: Mapping[str, Float[np.ndarray, " size"]],
    marks: Mapping[str, int],
    *,
    words: Sequence[str] = ("n", "MiB"),
) -> go.Figure:
    """Bytes against a length or a block size, on logarithmic axes: naive, tiled, and the least that any form moves.

    `marks`: name -> where an upright line stands.
    """
    lines = []
    for (name, values), color, dash in zip(moved.items(), (NAIVE, TILED, LEAST), ("dash", "dash", "dot"), strict=True):
        lines.append(_line(name, n, values / 2**20, color, dash))
    x = {"type": "log", "title": _title(words[0]), **_powers(n)}
    figure = _figure(lines, 340, xaxis=x, yaxis=_log(words[1]))
    return _marked(figure, marks)


# ---- what they share


def _figure(traces: Sequence[dict[str, Any]], height: int, **axes: dict[str, Any]) -> go.Figure:
    base = layout()
    drawn = {name: {**base[name], "tickfont": TICKS, **own} for name, own in axes.items()}
    margin = {"l": 64, "r": 16, "t": 60, "b": 48}
    return go.Figure(list(traces), layout={**base, **drawn, "legend": LEGEND, "height": height, "margin": margin})


def _line(name: str, x: np.ndarray, y: np.ndarray, color: str, dash: str) -> dict[str, Any]:
    hover = f"%{{x:,}}: %{{y:,.3~g}} MiB<extra>{plain(name)}</extra>"
    line = {"color": color, "width": 2.5, "dash": dash}
    drawn = {"type": "scatter", "mode": "lines", "name": plain(name), "line": line, "hovertemplate": hover}
    return {**drawn, "x": x, "y": y.astype(np.float32)}


def _marked(figure: go.Figure, marks: Mapping[str, int]) -> go.Figure:
    """Upright dotted lines with their names, one below the other where they stand close."""
    shapes, notes = [], []
    for at, (name, x) in enumerate(marks.items()):
        line = {"color": LEAST, "width": 1.5, "dash": "dot"}
        shapes.append({"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line})
        where = {"x": float(np.log10(x)), "y": 1 - 0.075 * at, "yref": "paper", "text": plain(name), "showarrow": False}
        notes.append({**where, "xanchor": "left", "yanchor": "top", "xshift": 4, "font": {"size": 12}})
    return figure.update_layout(shapes=shapes, annotations=notes)


def _log(title: str) -> dict[str, Any]:
    return {"type": "log", "title": _title(title), "showgrid": True, "dtick": 1, "exponentformat": "none"}


def _powers(n: np.ndarray) -> dict[str, Any]:
    """Ticks at powers of two, every other one where there are many."""
    low, high = int(np.ceil(np.log2(n[0]))), int(np.floor(np.log2(n[-1])))
    ticks = [2**one for one in range(low, high + 1, 2 if high - low > 6 else 1)]
    return {"tickvals": ticks, "ticktext": [f"{one:,}" if one < 1024 else f"{one // 1024}k" for one in ticks]}


def _title(text: str) -> dict[str, Any]:
    return {"text": plain(text), "font": {"size": 13}, "standoff": 8}


def _unit(most: int) -> tuple[str, float]:
    i = 0
    while most / 1024**i >= 1000 and i < len(UNITS) - 1:
        i += 1
    return UNITS[i], 1024.0**i


def _soft(color: str) -> str:
    r, g, b = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},.18)"
