"""Pictures of attention kernels over the number of tokens: time, peak memory, and how many times less either is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import MONO, SERIES, layout, plain

COLORS = {"naive": SERIES[4], "flash": SERIES[0], "flex": SERIES[3]}  # by kernel, as on the other tabs
FORMULA = SERIES[5]
TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 72, "r": 16, "t": 52, "b": 48}
HEIGHT = 340
Trace = dict[str, Any]
Sizes = Int[np.ndarray, " size"]


def kernel_times(
    measured: Mapping[str, tuple[Sizes, Float[np.ndarray, "3 size"]]],
    fitted: Mapping[str, tuple[Int[np.ndarray, " used"], Float[np.ndarray, " used"]]],
    crossing: float | None = None,
    *,
    names: Mapping[str, str],
    words: Sequence[str] = ("tokens n", "ms", "equal"),
) -> go.Figure:
    """By kernel: sizes and (low, median, high) on logarithmic axes, over the wide lines of their fits; a dotted line
    where the first two cross."""
    x_word, y_word, crossing_word = words
    traces = [_fit(kernel, *line) for kernel, line in fitted.items()]
    for kernel, (n, (low, middle, high)) in measured.items():
        spread = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
        line = _line(names[kernel], COLORS[kernel])
        traces.append({**line, "x": n, "y": middle, "error_y": {**spread, "thickness": 1.5}})
    figure = _figure(traces, _every(n for n, _ in measured.values()), x_word, y_word)
    return figure if crossing is None else _across(figure, crossing, crossing_word)


def kernel_memory(
    predicted: tuple[Sizes, Float[np.ndarray, " size"]],
    measured: Mapping[str, tuple[Int[np.ndarray, " point"], Float[np.ndarray, " point"]]],
    fitted: Mapping[str, tuple[Int[np.ndarray, " used"], Float[np.ndarray, " used"]]],
    limit: float | None = None,
    *,
    names: Mapping[str, str],
    words: Sequence[str] = ("tokens n", "MiB", "naive, by the formula", "limit here"),
) -> go.Figure:
    """Peaks: the naive form's by the formula dashed and hollow, what was measured solid; across, what may be used."""
    x_word, y_word, formula_word, limit_word = words
    n, values = predicted
    hollow = {"symbol": "circle-open", "size": 11, "color": COLORS["naive"], "line": {"width": 1.5}}
    dashed = {"mode": "lines+markers", "line": {"color": COLORS["naive"], "width": 1.5, "dash": "dash"}}
    traces = [{**_line(formula_word, COLORS["naive"]), **dashed, "marker": hollow, "x": n, "y": values}]
    traces += [_fit(kernel, *line) for kernel, line in fitted.items()]
    for kernel, (sizes, peaks) in measured.items():
        traces.append({**_line(names[kernel], COLORS[kernel]), "x": sizes, "y": peaks})
    if limit is not None:
        line = {"mode": "lines", "line": {"color": FORMULA, "width": 1.5, "dash": "dot"}}
        ends = {"x": n[[0, -1]], "y": np.full(2, limit, dtype=np.float32)}
        traces.append({**_line(limit_word, FORMULA), **line, **ends})
    return _figure(traces, n, x_word, y_word)


def kernel_gains(
    n: Sizes,
    speed: Float[np.ndarray, " size"],
    memory: Float[np.ndarray, " size"],
    crossing: float | None = None,
    *,
    words: Sequence[str] = ("tokens n", "naive / flash", "time", "memory", "equal"),
) -> go.Figure:
    """How many times less time and memory the fused kernel takes, over a line at one: no gain."""
    x_word, y_word, speed_word, memory_word, crossing_word = words
    even = {"type": "scatter", "mode": "lines", "line": {"color": FORMULA, "width": 1.5, "dash": "dash"}}
    traces: list[Trace] = [{**even, "x": n[[0, -1]], "y": np.ones(2, np.float32), "hoverinfo": "skip"}]
    traces[0]["showlegend"] = False
    for name, values, color in ((speed_word, speed, SERIES[0]), (memory_word, memory, SERIES[2])):
        line = _line(name, color)
        traces.append(
            {**line, "x": n, "y": values, "hovertemplate": f"%{{x:,}}: %{{y:.3g}}x<extra>{plain(name)}</extra>"}
        )
    figure = _figure(traces, n, x_word, y_word)
    return figure if crossing is None else _across(figure, crossing, crossing_word)


# ---- what they share


def _figure(traces: Sequence[Trace], n: Sizes, x_word: str, y_word: str) -> go.Figure:
    base = layout()
    xaxis = {**base["xaxis"], "tickfont": TICKS, "ticks": "", **_sizes(x_word, n)}
    log = {"type": "log", "dtick": 1, "exponentformat": "power", "showgrid": True}
    yaxis = {**base["yaxis"], "tickfont": TICKS, "ticks": "", "title": _title(y_word), **log}
    axes = {"xaxis": xaxis, "yaxis": yaxis}
    return go.Figure(list(traces), layout={**base, **axes, "legend": LEGEND, "height": HEIGHT, "margin": MARGIN})


def _across(figure: go.Figure, at: float, word: str) -> go.Figure:
    line = {"color": FORMULA, "width": 1.5, "dash": "dot"}
    figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, yref="paper", line=line)
    where = {"x": float(np.log10(at)), "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 4}
    return figure.add_annotation(text=plain(word), showarrow=False, **where)


def _fit(kernel: str, n: np.ndarray, values: np.ndarray) -> Trace:
    line = {"color": COLORS[kernel], "width": 8}
    drawn = {"type": "scatter", "mode": "lines", "line": line, "opacity": 0.22, "showlegend": False}
    return {**drawn, "x": n, "y": values, "hoverinfo": "skip"}


def _line(name: str, color: str) -> Trace:
    look = {"line": {"color": color, "width": 2.5}, "marker": {"color": color, "size": 7}}
    hover = f"%{{x:,}}: %{{y:.4g}}<extra>{plain(name)}</extra>"
    return {"type": "scatter", "mode": "lines+markers", **look, "name": plain(name), "hovertemplate": hover}


def _title(text: str) -> Trace:
    return {"text": plain(text), "font": {"size": 13}, "standoff": 10}


def _every(sizes: Any) -> Sizes:
    return np.unique(np.concatenate(list(sizes)))


def _sizes(text: str, n: Sizes) -> Trace:
    """A logarithmic axis that names each measured size, at most eight of them."""
    shown = n[:: max(1, -(-len(n) // 8))]
    ticks = {"tickmode": "array", "tickvals": shown.tolist(), "ticktext": [f"{one:,}" for one in shown]}
    return {"title": _title(text), "type": "log", **ticks}
