"""Memory of a model in parts: stacked bars by formula, hollow, against the line of what the device has."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from tfviz.figures.theme import SERIES, SOFT, layout, plain

COLORS = {"weights": SERIES[0], "cache": SERIES[2], "activations": SERIES[1], "gradients": SERIES[4]}
COLORS["optimizer"] = SERIES[3]
GIB = 1024**3
FAR = 4  # times the longest bar, beyond which the device's memory is not drawn to scale


def memory_bars(
    rows: Mapping[str, Mapping[str, float | int]],
    memory: float | int,
    names: Mapping[str, str],
    chosen: str,
    *,
    words: Sequence[str] = ("GiB", "device memory"),
) -> go.Figure:
    """`rows`: label -> bytes of each part; `names`: what a part is called; the `chosen` row is filled most."""
    bars, labels = [], [plain(row) for row in rows]
    strengths = ["b3" if row == chosen else "40" for row in rows]
    for part, name in names.items():
        sizes = np.array([parts.get(part, 0.0) / GIB for parts in rows.values()], dtype=np.float64)
        if not sizes.any():
            continue
        color = COLORS[part]
        marker = {"color": [color + strength for strength in strengths], "line": {"color": color, "width": 1.5}}
        hover = f"%{{y}}<br>{plain(name)}: %{{x:,.3g}} GiB<extra></extra>"
        bars.append(
            {"type": "bar", "orientation": "h", "y": labels, "x": sizes, "name": plain(name), "marker": marker}
            | {"hovertemplate": hover}
        )
    longest = max((sum(parts.values()) for parts in rows.values()), default=0.0) / GIB
    top = max(longest, memory / GIB)
    beyond = top > FAR * longest > 0  # the line would squeeze all bars: it stands at the edge, and its words say so
    at = FAR * longest if beyond else memory / GIB
    top = at if beyond else top
    base = layout(x=words[0])
    line = {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
    line["line"] = {"color": SOFT, "width": 2, "dash": "dash"}
    right = at > 0.6 * top
    said = {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "text": plain(words[1]) + " →" * beyond}
    said |= {"showarrow": False, "font": {"size": 12, "color": SOFT}, "xanchor": "right" if right else "left"}
    return go.Figure(
        {
            "data": bars,
            "layout": {
                **base,
                "barmode": "stack",
                "bargap": 0.35,
                "height": 110 + 44 * len(rows),
                "margin": {"l": room(labels), "r": 16, "t": 28, "b": 84},
                "legend": {"orientation": "h", "y": -52 / max(44 * len(rows), 60), "yanchor": "top", "x": 0},
                "showlegend": True,
                "xaxis": {**base["xaxis"], "range": [0, 1.05 * top], "showgrid": True},
                "yaxis": {**base["yaxis"], "autorange": "reversed"},
                "shapes": [line],
                "annotations": [said],
            },
        }
    )


def room(labels: Sequence[str]) -> int:
    """Pixels of the longest label beside its bar. Plotly's automargin lays everything out twice to find out."""
    widths = [sum(13.0 if ord(letter) > 0x2E7F else 7.2 for letter in label) for label in labels]
    return round(16 + max(widths, default=0.0))
