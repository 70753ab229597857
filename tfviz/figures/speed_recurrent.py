"""Pictures of path length: gradients by distance, the time of a pass by length, what was learned by distance."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import MONO, SERIES, layout, plain

COLORS = {"attention": 0, "rnn": 4, "gru": 3, "lstm": 2, "lstm_forget": 1}
THEORY = SERIES[5]
SMALLEST = 2.0**-149  # what FP32 holds beside 0
TICKS = {"family": MONO, "size": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MARGIN = {"l": 72, "r": 16, "t": 60, "b": 48}
Trace = dict[str, Any]


def gradient_distances(
    measured: Mapping[str, Float[np.ndarray, "3 distance"]],
    predicted: Float[np.ndarray, " distance"],
    first: tuple[Int[np.ndarray, " point"], Float[np.ndarray, "3 point"]] | None = None,
    *,
    names: Mapping[str, str],
    words: Sequence[str] = ("distance", "gradient", "RNN by the formula", "first token", "FP32 ends"),
) -> go.Figure:
    """(low, median, high) by kind over distances 1, 2 ..., relative to distance 1, on a logarithmic axis; the formula
    dashed; attention's to the first token as the text grows. FP64: most of it lies below what FP32 holds."""
    x_word, y_word, formula_word, first_word, ends_word = words
    k = np.arange(1, len(predicted) + 1)
    traces = [_band(k, quartiles, kind) for kind, quartiles in measured.items()]
    traces += [{**_line(names[kind], kind), "x": k, "y": one[1]} for kind, one in measured.items()]
    dashed = {"color": _color("rnn"), "width": 1.5, "dash": "dash"}
    traces.append({**_line(formula_word, "rnn"), "line": dashed, "x": k, "y": predicted})
    if first is not None:
        spread = _spread(first[1])
        line = {
            **_line(first_word, "attention", mode="lines+markers"),
            "line": {"color": _color("attention"), "width": 1},
        }
        traces.append(
            {**line, "marker": {"symbol": "x", "size": 7}, "x": first[0], "y": first[1][1], "error_y": spread}
        )
    lowest = min([float(predicted.min()), *(float(one.min()) for one in measured.values())])
    figure = _figure(traces, xaxis={"title": _title(x_word), "range": [0, len(k)]}, yaxis={**_log(y_word), "nticks": 8})
    if lowest > SMALLEST:
        return figure
    line = {"color": THEORY, "width": 1.5, "dash": "dot"}
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=SMALLEST, y1=SMALLEST, line=line)
    said = {"text": plain(ends_word), "showarrow": False, "xref": "paper", "xanchor": "left", "yanchor": "top"}
    return figure.add_annotation(x=0, y=float(np.log10(SMALLEST)), xshift=6, **said)


def pass_times(
    n: Int[np.ndarray, " size"],
    measured: Mapping[str, Float[np.ndarray, "3 size"]],
    crossing: tuple[float, str] | None = None,
    *,
    names: Mapping[str, str],
    words: Sequence[str] = ("tokens n", "ms"),
) -> go.Figure:
    """(low, median, high) by kind on logarithmic axes; a dotted line, with its sentence, where two of them cross."""
    traces = [
        {**_line(names[kind], kind, mode="lines+markers"), "x": n, "y": one[1], "error_y": _spread(one)}
        for kind, one in measured.items()
    ]
    figure = _figure(traces, xaxis=_lengths(words[0], n), yaxis={**_log(words[1]), "dtick": 1})
    if crossing is None:
        return figure
    at, said = crossing
    line = {"color": THEORY, "width": 1.5, "dash": "dot"}
    figure.add_shape(type="line", yref="paper", x0=at, x1=at, y0=0, y1=1, line=line)
    side = "right" if at > np.sqrt(float(n[0]) * float(n[-1])) else "left"
    place = {"x": float(np.log10(at)), "y": 1, "yref": "paper", "xanchor": side, "yanchor": "top"}
    return figure.add_annotation(text=plain(said), showarrow=False, xshift=-4 if side == "right" else 4, **place)


def recall_accuracy(
    distances: Sequence[int],
    accuracy: Mapping[str, Float[np.ndarray, " distance"]],
    chance: float,
    *,
    names: Mapping[str, str],
    words: Sequence[str] = ("distance", "right, %", "guessing"),
) -> go.Figure:
    """Percent right by kind in groups of one distance each (nan: not taught yet); a dashed line at guessing."""
    x_word, y_word, chance_word = words
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": plain(names[kind]),
            "x": np.arange(len(distances)),
            "y": 100 * one,
            "marker": {"color": _color(kind)},
            "hovertemplate": f"%{{y:.1f}} %<extra>{plain(names[kind])}</extra>",
        }
        for kind, one in accuracy.items()
    ]
    x = {"title": _title(x_word), "tickvals": list(range(len(distances))), "ticktext": [f"{d:,}" for d in distances]}
    y = {"title": _title(y_word), "range": [0, 105], "showgrid": True}
    figure = _figure(traces, xaxis={**x, "range": [-0.5, len(distances) - 0.5]}, yaxis=y)
    line = {"color": THEORY, "width": 1.5, "dash": "dash"}
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=100 * chance, y1=100 * chance, line=line)
    said = {"text": plain(chance_word), "showarrow": False, "xref": "paper", "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(x=1, y=100 * chance, **said)
    return figure.update_layout(bargap=0.25, bargroupgap=0.05, height=300)


# ---- what they share


def _color(kind: str) -> str:
    return SERIES[COLORS[kind]]


def _figure(traces: Iterable[Trace], **axes: Trace) -> go.Figure:
    base = layout()
    drawn = {name: {**base[name], "tickfont": TICKS, "ticks": "", **own} for name, own in axes.items()}
    return go.Figure(list(traces), layout={**base, **drawn, "legend": LEGEND, "height": 360, "margin": MARGIN})


def _title(text: str) -> Trace:
    return {"text": plain(text), "font": {"size": 13}, "standoff": 10}


def _log(text: str) -> Trace:
    return {"title": _title(text), "showgrid": True, "type": "log", "exponentformat": "power"}


def _lengths(text: str, n: Int[np.ndarray, " size"]) -> Trace:
    ticks = {"tickmode": "array", "tickvals": [int(one) for one in n], "ticktext": [f"{one:,}" for one in n]}
    return {"title": _title(text), "type": "log", **ticks}


def _line(name: str, kind: str, mode: str = "lines") -> Trace:
    line = {"color": _color(kind), "width": 2.5}
    hover = f"%{{x:,}}: %{{y:.3g}}<extra>{plain(name)}</extra>"
    return {"type": "scatter", "mode": mode, "line": line, "name": plain(name), "hovertemplate": hover}


def _band(k: Int[np.ndarray, " distance"], quartiles: Float[np.ndarray, "3 distance"], kind: str) -> Trace:
    red, green, blue = (int(_color(kind)[i : i + 2], 16) for i in (1, 3, 5))
    area = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "fill": "toself", "hoverinfo": "skip"}
    y = np.concatenate([quartiles[0], quartiles[2][::-1]])
    color = f"rgba({red},{green},{blue},0.2)"
    return {**area, "x": np.concatenate([k, k[::-1]]), "y": y, "fillcolor": color, "showlegend": False}


def _spread(quartiles: Float[np.ndarray, "3 size"]) -> Trace:
    low, middle, high = quartiles
    return {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low, "thickness": 1.5}
