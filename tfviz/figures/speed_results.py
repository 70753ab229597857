"""Pictures of two machines: every figure that both measured, as how many times better one of them is."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import MONO, SERIES, layout, plain

HERE, THERE, EQUAL = SERIES[0], SERIES[4], SERIES[5]


def gain_dots(
    gains: Mapping[str, tuple[Sequence[str], Float[np.ndarray, " row"]]],
    *,
    words: Sequence[str] = ("times better on this machine", "equal"),
) -> go.Figure:
    """A line of dots a group, {group: (what each dot is, gains)}; logarithmic, 1 is equal, right of it is better here.
    A tall mark stands at each group's median."""
    traces = []
    for i, (labels, values) in enumerate(gains.values()):
        ink = [HERE if x >= 1 else THERE for x in values]
        dots = {"type": "scatter", "mode": "markers", "marker": {"color": ink, "size": 9, "opacity": 0.6}}
        text = {"text": [plain(one) for one in labels], "hovertemplate": "%{text}<br>%{x:.3g}x<extra></extra>"}
        traces.append({**dots, **text, "x": values, "y": np.full(len(values), i, dtype=np.int32)})
    middles = np.array([np.median(values) for _, values in gains.values()], dtype=np.float64)
    mark = {
        "symbol": "line-ns",
        "size": 18,
        "line": {"width": 3, "color": [HERE if x >= 1 else THERE for x in middles]},
    }
    tall = {"type": "scatter", "mode": "markers", "marker": mark, "hovertemplate": "%{x:.3g}x<extra></extra>"}
    traces.append({**tall, "x": middles, "y": np.arange(len(gains), dtype=np.int32)})
    names = [plain(name) for name in gains]
    base = layout(x=plain(words[0]))
    y = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names, "showgrid": True, "ticks": ""}
    x = {"type": "log", "ticks": "", "range": _range(gains), **_ticks(*_ends(gains))}
    figure = go.Figure(traces, layout=base).update_layout(
        xaxis={**x, "tickfont": {"family": MONO, "size": 12}},
        yaxis={**y, "range": [len(names) - 0.4, -0.6], "tickfont": {"size": 12}},
        showlegend=False,
        height=96 + 34 * max(len(names), 2),
        margin={"l": 160, "r": 16, "t": 24, "b": 56},
    )
    line = {"color": EQUAL, "width": 1.5, "dash": "dot"}
    figure.add_shape(type="line", x0=1, x1=1, y0=0, y1=1, yref="paper", line=line)
    note = {"x": 0, "y": 1, "yref": "paper", "xanchor": "center", "yanchor": "bottom", "showarrow": False}
    return figure.add_annotation(text=plain(words[1]), **note)


def _ends(gains: Mapping[str, tuple[Sequence[str], Float[np.ndarray, " row"]]]) -> tuple[float, float]:
    every = np.log10(np.concatenate([values for _, values in gains.values()]))
    return min(float(every.min()), -0.1), max(float(every.max()), 0.1)


def _ticks(low: float, high: float) -> dict[str, object]:
    """0.2x 0.5x 1x 2x 5x, or powers of ten where there are many."""
    steps = (1, 2, 5) if high - low < 3 else (1,)
    every = [step * 10.0**power for power in range(int(np.floor(low)) - 1, int(np.ceil(high)) + 1) for step in steps]
    shown = [one for one in every if low - 0.05 <= np.log10(one) <= high + 0.05]
    shown = shown[:: max(1, -(-len(shown) // 10))] if 1.0 not in shown or len(shown) > 20 else shown
    return {"tickmode": "array", "tickvals": shown, "ticktext": [f"{one:,.6g}x" for one in shown]}


def _range(gains: Mapping[str, tuple[Sequence[str], Float[np.ndarray, " row"]]]) -> list[float]:
    """A little beyond the dots, and 1 always in it."""
    low, high = _ends(gains)
    room = 0.06 * (high - low)
    return [low - room, high + room]
