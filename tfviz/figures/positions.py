"""Pictures of positions: encodings and biases as heatmaps, curves over distance, wavelengths, matrices side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Real

from tfviz.figures.theme import DIVERGING_SCALE, SERIES, WEIGHT_SCALE, layout, plain, position_axis

TITLE = {"font": {"size": 13}, "standoff": 10}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}}
BAR = {"thickness": 10, "outlinewidth": 0, "tickfont": {"size": 11}}
SHADE = "rgba(124,138,165,.16)"  # reads on light and dark
PLATE, GAP = 0.31, 0.035  # shares of the width: a matrix, and what is between two
Values = Real[np.ndarray, "_"]  # as many as there are points
SHOWN_LABELS, FEW_LABELS = 28, 18  # more tokens on one axis would run into each other


@dataclass(frozen=True)
class Mark:
    """A place on an axis with its name: where training ended, which position is looked at."""

    at: int | float
    name: str = ""
    beyond: bool = False  # the axis from here on is shaded
    axis: str = "x"


def signed_heatmap(
    values: Float[np.ndarray, "row column"],
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    row_numbers: np.ndarray | None = None,
    column_numbers: np.ndarray | None = None,
    limit: float | None = None,
    marks: Sequence[Mark] = (),
    words: Sequence[str] = ("position", "dimension"),
) -> go.Figure:
    """Signed numbers, white at zero. Labels go by place; numbers instead of labels scale the axis.

    `words` name rows and columns, `limit` is the size of full colour (default: the largest). `ValueError` if the labels
    do not fit.
    """
    _check(values, rows, columns)
    row_word, column_word = words
    limit = float(np.abs(values).max(initial=0)) or 1.0 if limit is None else limit
    hover = f"{row_word} %{{y}}, {column_word} %{{x}}" if rows is None or columns is None else "%{hovertext}"
    heat = go.Heatmap(
        z=values.astype(np.float32),
        x=column_numbers,
        y=row_numbers,
        zmin=-limit,
        zmax=limit,
        zmid=0,
        colorscale=DIVERGING_SCALE,
        meta="diverging",
        colorbar=BAR,
        hovertext=_pairs(rows, columns),
        hovertemplate=f"{hover}: %{{z:.4g}}<extra></extra>",
    )
    figure = go.Figure(heat, layout=layout(x=column_word, y=row_word))
    figure.update_xaxes(title=TITLE, **_labels(columns))
    figure.update_yaxes(title=TITLE, autorange="reversed", **_labels(rows))
    return _framed(_marked(figure, marks), 340, left=_room(rows), bottom=_room(columns, 56))


def position_curves(
    x: Real[np.ndarray, " point"],
    curves: Mapping[str, Values],
    *,
    words: Sequence[str] = ("position", "value"),
    marks: Sequence[Mark] = (),
    dots: bool = False,
    steps: bool = False,
    log: Sequence[str] = (),
    dashed: Sequence[str] = (),
    ticks: Mapping[float, str] | None = None,
) -> go.Figure:
    """One line a name over positions, distances or pairs. `log` names the axes to take the logarithm of.

    `dashed` names lines that may lie on others; `ticks` are the y axis' own.

    `ValueError` if a curve has not one value a point.
    """
    x_word, y_word = words
    figure = go.Figure(layout=layout(x=x_word, y=y_word))
    for i, (name, curve) in enumerate(curves.items()):
        if curve.shape != x.shape:
            raise ValueError(f"{name} has {len(curve)} values for {len(x)} points")
        color, dash = SERIES[i % len(SERIES)], "dash" if name in dashed else "solid"
        figure.add_scatter(
            x=x,
            y=curve.astype(np.float32),
            name=plain(name),
            mode="lines+markers" if dots else "lines",
            line={"color": color, "width": 2, "dash": dash, "shape": "hv" if steps else "linear"},
            marker={"size": 5, "color": color},
            hovertemplate=f"{x_word} %{{x}}: %{{y:.4g}}<extra>{plain(name)}</extra>",
        )
    y = np.concatenate(list(curves.values())) if curves else np.zeros(0)
    figure.update_xaxes(title=TITLE, **(_decades(x) if "x" in log else {}))
    figure.update_yaxes(title=TITLE, showgrid=True, **(_decades(y) if "y" in log else {}))
    if ticks is not None:
        figure.update_yaxes(tickmode="array", tickvals=list(ticks), ticktext=list(ticks.values()))
    figure.update_layout(legend=LEGEND, showlegend=len(curves) > 1, hovermode="closest")
    above = 16 if len(curves) < 2 else 40 if len(curves) < 4 else 58  # the legend takes one line or two
    return _framed(_marked(figure, marks, log), 320, left=72, top=above)


def matrices(
    first: Float[np.ndarray, "query key"],
    second: Float[np.ndarray, "query key"],
    tokens: Sequence[str],
    *,
    words: Sequence[str] = ("first", "second", "difference"),
) -> go.Figure:
    """Two matrices of weights over the same tokens, and the second minus the first; columns go as the rows do.

    `ValueError` if they do not fit.
    """
    for weights in (first, second):
        _check(weights, tokens, tokens)
    ink = {"zmin": 0, "zmax": 1, "colorscale": WEIGHT_SCALE, "meta": "weights"}
    signed = {"zmin": -1, "zmax": 1, "zmid": 0, "colorscale": DIVERGING_SCALE, "meta": "diverging"}
    plates = ((first, ink, ".3f"), (second, ink, ".3f"), (second - first, signed, "+.2e"))
    base = layout()
    axis = base["xaxis"] | _labels(tokens, FEW_LABELS) | {"mirror": True}
    framed = {name: base[name] for name in ("template", "font", "paper_bgcolor", "plot_bgcolor")}
    heats, names = [], []
    for i, (values, colors, digits) in enumerate(plates):
        number, start = "" if i == 0 else str(i + 1), i * (PLATE + GAP)
        heat = go.Heatmap(
            z=(np.sign(values) * np.sqrt(np.abs(values))).astype(np.float32),  # small ones show
            customdata=values.astype(np.float32),
            hovertemplate=f"%{{y}} → %{{x}}: %{{customdata:{digits}}}<extra></extra>",
            showscale=False,
            xaxis=f"x{number}",
            yaxis=f"y{number}",
            **colors,
        )
        heats.append(heat)
        across = {"showticklabels": False, "ticks": "", "domain": [start, start + PLATE], "anchor": f"y{number}"}
        down = {"autorange": "reversed", "anchor": f"x{number}", "showticklabels": i == 0, "ticks": ""}
        framed |= {f"xaxis{number}": axis | across, f"yaxis{number}": axis | down}
        place = {"x": start + PLATE / 2, "y": 1, "xref": "paper", "yref": "paper", "yanchor": "bottom"}
        names.append({"text": plain(words[i]), "showarrow": False, "font": {"size": 13}, "xanchor": "center", **place})
    figure = go.Figure(heats, framed | {"annotations": names})
    return _framed(figure, 280, left=_room(tokens), top=28, bottom=16)


# ---- what they share


def _check(values: np.ndarray, rows: Sequence[str] | None, columns: Sequence[str] | None) -> None:
    for n, labels in zip(values.shape, (rows, columns), strict=True):
        if labels is not None and len(labels) != n:
            raise ValueError(f"values are {values.shape}, but there are {len(labels)} labels for {n}")


def _labels(labels: Sequence[str] | None, most: int = SHOWN_LABELS) -> dict[str, object]:
    """Ticks at places; of many labels every second, third ... only."""
    if labels is None:
        return {}
    every = -(-len(labels) // most)
    axis = position_axis(labels)
    return axis | {"tickvals": axis["tickvals"][::every], "ticktext": axis["ticktext"][::every]}


def _decades(values: Values) -> dict[str, object]:
    """A logarithmic axis with powers of ten as plain numbers, at most seven of them."""
    low, high = (float(np.log10(x)) for x in (values.min(), values.max()))
    powers = range(int(np.ceil(low - 1e-9)), int(np.floor(high + 1e-9)) + 1)
    shown = [10.0**power for power in powers[:: max(1, -(-len(powers) // 7))]]
    text = [f"{x:,.0f}" if 1 <= x < 1e6 else f"{x:.0e}".replace("+0", "") if x >= 1e6 else f"{x:g}" for x in shown]
    return {"type": "log", "tickmode": "array", "tickvals": shown, "ticktext": text}


def _room(labels: Sequence[str] | None, least: int = 64) -> int:
    """Pixels that the longest label takes beside its axis."""
    return least if labels is None else max(least, min(120, 28 + 8 * max(map(len, labels), default=0)))


def _pairs(rows: Sequence[str] | None, columns: Sequence[str] | None) -> list[list[str]] | None:
    """What a cell between two tokens is called."""
    if rows is None or columns is None:
        return None
    return [[f"{plain(r)} ({i}) → {plain(c)} ({j})" for j, c in enumerate(columns)] for i, r in enumerate(rows)]


def _marked(figure: go.Figure, marks: Sequence[Mark], log: Sequence[str] = ()) -> go.Figure:
    """Dashed lines with their names; what lies beyond one is shaded."""
    shapes: list[dict[str, object]] = []
    names: list[dict[str, object]] = []
    for mark in marks:
        along, across = ("x", "y") if mark.axis == "x" else ("y", "x")
        whole = {f"{across}0": 0, f"{across}1": 1, f"{across}ref": "paper", f"{along}ref": along}
        line = {"color": SERIES[5], "width": 1.5, "dash": "dash"}
        shapes.append({"type": "line", "line": line, f"{along}0": mark.at, f"{along}1": mark.at} | whole)
        if mark.beyond:
            end = max(mark.at, *(float(np.max(trace[along])) for trace in figure.data))
            rect = {"type": "rect", "fillcolor": SHADE, "line": {"width": 0}, "layer": "below"}
            shapes.append(rect | {f"{along}0": mark.at, f"{along}1": end} | whole)
        if mark.name:
            names.append(
                {"text": plain(mark.name), "showarrow": False, "font": {"size": 12}} | _place(figure, mark, log)
            )
    return figure.update_layout(shapes=shapes, annotations=names) if marks else figure


def _place(figure: go.Figure, mark: Mark, log: Sequence[str]) -> dict[str, object]:
    """Where a mark's name stands: beside its line, inside; of a line across, at the end that the curve is far from."""
    at = float(np.log10(mark.at)) if mark.axis in log else mark.at
    if mark.axis == "x":
        return {"x": at, "y": 1, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 3}
    first, last = (np.log10(y) if "y" in log else y for y in figure.data[0].y[[0, -1]])
    left = abs(first - at) > abs(last - at)
    side = {"x": 0, "xanchor": "left", "xshift": 4} if left else {"x": 1, "xanchor": "right"}
    return {"y": at, "xref": "paper", "yref": "y", "yanchor": "bottom"} | side


def _framed(figure: go.Figure, height: int, *, left: int = 64, top: int = 16, bottom: int = 52) -> go.Figure:
    return figure.update_layout(height=height, margin={"l": left, "r": 16, "t": top, "b": bottom})
