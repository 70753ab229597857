"""Pictures of normalisation: how values are spread before and after, what eps does, and gradients by depth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import SERIES, layout, plain

Values = Float[np.ndarray, "_"]
TITLE = {"font": {"size": 13}, "standoff": 10}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 60, "r": 16, "t": 34, "b": 46}
BINS = 48
UPRIGHT = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}  # a mark as high as the picture


def value_histogram(
    values: Values, *, colour: str = SERIES[0], words: Sequence[str] = ("value", "features", "mean", "σ")
) -> go.Figure:
    """How many features have which value, on a logarithmic axis so that single outliers show; mean and spread."""
    x_word, y_word, mean_word, spread_word = words
    counts, edges = np.histogram(values, BINS)
    middle, width = (edges[:-1] + edges[1:]) / 2, float(edges[1] - edges[0])
    hover = f"%{{x:.4g}} ± {width / 2:.2g}: %{{y}}<extra></extra>"
    bars = {"type": "bar", "x": middle, "y": np.where(counts, counts, np.nan), "width": width, "hovertemplate": hover}
    mean, sigma = float(values.mean()), float(values.std())
    band = {"type": "rect", "x0": mean - sigma, "x1": mean + sigma, "fillcolor": SERIES[5], "opacity": 0.16}
    shapes = [{**band, "line": {"width": 0}, "layer": "below", **UPRIGHT}, _mark(mean)]
    said = f"{mean_word} {mean:.3g}   {spread_word} {sigma:.3g}"
    note = {"text": said, "x": 0, "y": 1.02, "xref": "paper", "yref": "paper", "showarrow": False, "yanchor": "bottom"}
    y_axis = {"type": "log", "range": [-0.2, np.log10(max(2, counts.max())) + 0.1], "dtick": 1}
    options = {"height": 280, "showlegend": False, "bargap": 0, "shapes": shapes, "annotations": [note]}
    return _figure([bars | {"marker": {"color": colour}}], (x_word, y_word), {}, y_axis, **options)


def norms_compared(outputs: Mapping[str, Values], *, words: Sequence[str] = ("value", "features")) -> go.Figure:
    """The outputs of several norms for one token: outlines of their histograms over the same bins."""
    every = np.concatenate(list(outputs.values()))
    edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-12), BINS + 1)
    lines = []
    for i, (name, values) in enumerate(outputs.items()):
        counts, _ = np.histogram(values, edges)
        y = np.append(counts, counts[-1]).astype(np.float32)
        line = _line(name, edges.astype(np.float32), np.where(y > 0, y, np.nan), i, "%{x:.3g}: %{y}")
        style = {"width": 2, "shape": "hv", "dash": ("solid", "dash", "dot")[i % 3]}
        lines.append(line | {"line": {"color": SERIES[i % len(SERIES)]} | style})
    return _figure(lines, words, {}, {"type": "log", "dtick": 1}, height=300)


def eps_curves(
    eps: Values,
    curves: Mapping[str, Values],
    now: float,
    *,
    words: Sequence[str] = ("eps", "standard deviation of the output", "chosen"),
) -> go.Figure:
    """The size of a norm's output over eps: a colour a vector, drawn through for the first formula, dotted for the
    second; `now` is marked."""
    x_word, y_word, now_word = words
    lines = []
    for i, (name, curve) in enumerate(curves.items()):
        line = _line(name, eps, curve, i // 2, f"{x_word} %{{x:.1e}}: %{{y:.4f}}")
        line["line"]["dash"] = ("solid", "dot")[i % 2]
        lines.append(line)
    note = {"text": plain(now_word), "x": float(np.log10(now)), "y": 0, "xanchor": "left", "yanchor": "bottom"}
    x_axis: dict[str, Any] = {"type": "log", "exponentformat": "power", "dtick": 2}
    y_axis: dict[str, Any] = {"range": [-0.03, 1.08], "showgrid": True}
    marks = {"shapes": [_mark(now)], "annotations": [note | {"showarrow": False}]}
    return _figure(lines, (x_word, y_word), x_axis, y_axis, height=320, **marks)


def _figure(
    data: Sequence[dict[str, Any]], words: Sequence[str], x: dict[str, Any], y: dict[str, Any], **options: Any
) -> go.Figure:
    """All of a figure in one go, which takes Plotly half the time of a step by step one."""
    base = layout(x=words[0], y=words[1])
    for axis, own in (("xaxis", x), ("yaxis", y)):
        base[axis] |= own | {"title": base[axis]["title"] | TITLE}
    return go.Figure(data=list(data), layout=base | {"margin": MARGIN, "legend": LEGEND} | options)


def _line(name: str, x: Values, y: Values, i: int, hover: str) -> dict[str, Any]:
    style = {"color": SERIES[i % len(SERIES)], "width": 2.5}
    known = {"type": "scatter", "mode": "lines", "name": plain(name), "line": style}
    return known | {"x": x, "y": y, "hovertemplate": f"{hover}<extra>{plain(name)}</extra>"}


def _mark(x: float) -> dict[str, Any]:
    """An upright dotted line."""
    return {"type": "line", "x0": x, "x1": x, "line": {"color": SERIES[5], "width": 1.5, "dash": "dot"}, **UPRIGHT}


def gradients_by_layer(
    curves: Mapping[str, Values], top: float, *, words: Sequence[str] = ("layer", "gradient norm")
) -> go.Figure:
    """One line a depth, from its first layer to its last, which is marked; `top` is the end of the axis, shared by
    the two pictures that stand side by side."""
    figure = go.Figure(layout=layout(x=words[0], y=words[1]))
    for i, (name, values) in enumerate(curves.items()):
        colour, layers = SERIES[i % len(SERIES)], np.arange(1, len(values) + 1)
        hover = f"{words[0]} %{{x}}: %{{y:.3g}}<extra>{plain(name)}</extra>"
        sizes = np.where(layers == len(values), 9, 0)
        figure.add_scatter(
            x=layers,
            y=values,
            name=plain(name),
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": sizes, "color": colour},
            hovertemplate=hover,
        )
    figure.update_xaxes(title=TITLE, rangemode="tozero")
    figure.update_yaxes(title=TITLE, range=[0, top], showgrid=True)
    return figure.update_layout(height=320, margin=MARGIN, legend=LEGEND, showlegend=True)


def last_layer_by_depth(
    depths: Values,
    measured: Mapping[str, Values],
    predicted: Mapping[str, Values],
    *,
    words: Sequence[str] = ("layers", "gradient norm of the last layer"),
) -> go.Figure:
    """Measured points and predicted lines on two logarithmic axes."""
    figure = go.Figure(layout=layout(x=words[0], y=words[1]))
    for i, (name, values) in enumerate(measured.items()):
        hover = f"%{{x}} {words[0]}: %{{y:.3g}}<extra>{plain(name)}</extra>"
        marker = {"size": 10, "color": SERIES[i]}
        figure.add_scatter(x=depths, y=values, name=plain(name), mode="markers", marker=marker, hovertemplate=hover)
    for i, (name, values) in enumerate(predicted.items()):
        line = {"color": SERIES[i], "width": 1.5, "dash": "dot"}
        options = {"mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=depths, y=values, name=plain(name), **options)
    figure.update_xaxes(type="log", title=TITLE, tickvals=depths, ticktext=[f"{int(depth)}" for depth in depths])
    every = np.concatenate(list(measured.values())) if measured else np.ones(1)
    figure.update_yaxes(type="log", title=TITLE, showgrid=True, tickvals=_log_ticks(every.min(), every.max()))
    return figure.update_layout(height=320, margin=MARGIN, legend=LEGEND)


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten from just below `low` to just above `high`."""
    powers = range(int(np.floor(np.log10(max(low, 1e-30)))), int(np.ceil(np.log10(max(high, 1e-30)))) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return [tick for tick in ticks if low / 2 <= tick <= high * 2]
