"""Pictures of training techniques at work: clipped gradients, dropout's draws, shared parameters, parts of a batch."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import SERIES, WEIGHT_SCALE, layout, plain, position_axis

TITLE = {"font": {"size": 13}, "standoff": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
OURS, OTHER, WRONG, BEFORE = SERIES[0], SERIES[2], SERIES[4], SERIES[5]
ROUND = np.outer(10.0 ** np.arange(-5, 2), (1, 2, 5)).ravel()  # ticks of a logarithmic axis
GUIDE = {"color": BEFORE, "width": 1.5, "dash": "dash"}


def gradient_norms(
    before: Float[np.ndarray, " step"],
    after: Float[np.ndarray, " step"],
    max_norm: float,
    n_steps: int,
    *,
    words: Sequence[str] = ("step", "gradient norm", "before", "after", "max_norm"),
) -> go.Figure:
    """The norm of each step's gradient before and after clipping; the axis has room for all `n_steps`."""
    step_word, norm_word, before_word, after_word, limit_word = words
    figure = go.Figure(layout=layout(x=step_word, y=norm_word))
    steps = np.arange(1, len(before) + 1)
    for name, norms, color, width in ((before_word, before, BEFORE, 1.5), (after_word, after, OURS, 2.5)):
        line = {"color": color, "width": width}
        hover = f"{step_word} %{{x}}: %{{y:.4g}}<extra>{plain(name)}</extra>"
        figure.add_scatter(x=steps, y=norms, name=plain(name), mode="lines", line=line, hovertemplate=hover)
    ends = np.array([0.5, n_steps + 0.5])
    figure.add_scatter(
        x=ends, y=np.full(2, max_norm), name=plain(limit_word), mode="lines", line=GUIDE, hoverinfo="skip"
    )
    figure.update_xaxes(range=ends, title=TITLE)
    figure.update_yaxes(rangemode="tozero", showgrid=True, title=TITLE)
    return figure.update_layout(legend=LEGEND, hovermode="closest")


def norms_by_parameter(
    names: Sequence[str],
    before: Float[np.ndarray, " parameter"],
    after: Float[np.ndarray, " parameter"],
    *,
    words: Sequence[str] = ("norm before", "norm after", "one matrix or vector", "nothing clipped"),
) -> go.Figure:
    """One dot a parameter: what is clipped as a whole lies on one line through 0."""
    before_word, after_word, dot_word, equal_word = words
    figure = go.Figure(layout=layout(x=before_word, y=after_word))
    end = float(before.max(initial=0)) * 1.05
    ends = np.array([0, end])
    figure.add_scatter(x=ends, y=ends, name=plain(equal_word), mode="lines", line=GUIDE, hoverinfo="skip")
    hover = "%{text}<br>%{x:.3g} → %{y:.3g}<extra></extra>"
    figure.add_scatter(
        x=before,
        y=after,
        text=[plain(name) for name in names],
        name=plain(dot_word),
        mode="markers",
        marker={"color": OURS, "size": 8, "opacity": 0.75},
        hovertemplate=hover,
    )
    figure.update_xaxes(range=ends, title=TITLE)
    figure.update_yaxes(range=ends, showgrid=True, title=TITLE)
    return figure.update_layout(legend=LEGEND, hovermode="closest")


def probability_rows(
    values: Float[np.ndarray, "row token"],
    rows: Sequence[str],
    tokens: Sequence[str],
    *,
    words: Sequence[str] = ("probability",),
) -> go.Figure:
    """A cell for each row and token, 0 to 1, with its value written in it; the first row on top."""
    figure = go.Figure(layout=layout())
    figure.add_heatmap(
        z=values.astype(np.float32),
        zmin=0,
        zmax=1,
        colorscale=WEIGHT_SCALE,
        meta="weights",
        colorbar={"thickness": 10, "outlinewidth": 0, "tickvals": [0, 0.5, 1], "ticks": "", "len": 1},
        xgap=2,
        ygap=2,
        hovertemplate=f"%{{y}}, %{{x}}: {plain(words[0])} %{{z:.3f}}<extra></extra>",
    )
    figure.update_xaxes(**position_axis(tokens), side="top", showline=False, ticks="")
    figure.update_yaxes(**position_axis(rows), autorange="reversed", showline=False, ticks="")
    return figure


def mean_distances(
    sizes: Int[np.ndarray, " size"],
    distances: Mapping[str, Float[np.ndarray, " size"]],
    *,
    words: Sequence[str] = ("draws in the mean", "distance to evaluation", "1/√m"),
) -> go.Figure:
    """One line a case on logarithmic axes, and where 1/√m would lead from the first point of the first."""
    size_word, distance_word, guide_word = words
    figure = go.Figure(layout=layout(x=size_word, y=distance_word))
    start = next(iter(distances.values()))[0]
    guide = start / np.sqrt(sizes)
    figure.add_scatter(x=sizes, y=guide, name=plain(guide_word), mode="lines", line=GUIDE, hoverinfo="skip")
    for i, (name, away) in enumerate(distances.items()):
        color = (OURS, SERIES[1])[i % 2]
        figure.add_scatter(
            x=sizes,
            y=away,
            name=plain(name),
            mode="lines+markers",
            line={"color": color, "width": 2.5},
            marker={"color": color, "size": 7},
            hovertemplate=f"%{{x}}: %{{y:.3g}}<extra>{plain(name)}</extra>",
        )
    figure.update_xaxes(type="log", title=TITLE, tickvals=sizes, ticktext=[str(size) for size in sizes])
    figure.update_yaxes(type="log", title=TITLE, showgrid=True, tickvals=ROUND, ticktext=[f"{one:g}" for one in ROUND])
    return figure.update_layout(legend=LEGEND, hovermode="closest")


def stacked_counts(
    rows: Sequence[str],
    parts: Mapping[str, Float[np.ndarray, " row"]],
    *,
    marked: Sequence[str] = (),
    words: Sequence[str] = ("parameters",),
) -> go.Figure:
    """One bar a row, made of its parts side by side; the `marked` parts in colours, all others in greys."""
    figure = go.Figure(layout=layout(x=words[0]))
    colors = dict(zip(marked, (OURS, SERIES[1], OTHER), strict=False))
    greys = iter(np.linspace(0.55, 0.2, max(1, len(parts) - len(colors))))
    for name, values in parts.items():
        color = colors.get(name) or f"rgba(124,138,165,{next(greys):.2f})"
        figure.add_bar(
            y=list(rows),
            x=values,
            name=plain(name),
            orientation="h",
            width=0.5,
            marker={"color": color, "line": {"width": 0}},
            hovertemplate=f"%{{y}}: {plain(name)} %{{x:,}}<extra></extra>",
        )
    figure.update_xaxes(title=TITLE, showgrid=True)
    figure.update_yaxes(autorange="reversed", showline=False)
    return figure.update_layout(barmode="stack", legend={**LEGEND, "traceorder": "normal"}, hovermode="closest")


def part_differences(
    parts: Int[np.ndarray, " case"],
    differences: Mapping[str, Float[np.ndarray, " case"]],
    n_most: int,
    chosen: int,
    *,
    words: Sequence[str] = ("micro-batches", "largest difference"),
) -> go.Figure:
    """One line a way to add up over the number of parts; `chosen` is marked, exact agreement (0) has no point."""
    part_word, difference_word = words
    figure = go.Figure(layout=layout(x=part_word, y=difference_word))
    for (name, values), color in zip(differences.items(), (OURS, WRONG), strict=False):
        figure.add_scatter(
            x=parts,
            y=np.where(values > 0, values, np.nan),
            name=plain(name),
            mode="lines+markers",
            line={"color": color, "width": 2.5},
            marker={"color": color, "size": 7},
            hovertemplate=f"{part_word} %{{x}}: %{{y:.2e}}<extra>{plain(name)}</extra>",
        )
    figure.add_vline(x=chosen, line=GUIDE)
    ticks = 2 ** np.arange(n_most.bit_length())
    room = [-0.15, float(np.log2(n_most) + 0.5) * float(np.log10(2))]
    figure.update_xaxes(type="log", title=TITLE, range=room, tickvals=ticks, ticktext=[str(n) for n in ticks])
    figure.update_yaxes(type="log", title=TITLE, showgrid=True, exponentformat="power", range=[-9, 0.2], dtick=2)
    return figure.update_layout(legend=LEGEND, hovermode="closest")


def token_says(
    tokens: Int[np.ndarray, " part"],
    says: Float[np.ndarray, " part"],
    *,
    words: Sequence[str] = ("micro-batch", "weight of one token", "tokens"),
) -> go.Figure:
    """How much one token of each part counts, 1 being its fair share of the whole batch."""
    part_word, say_word, token_word = words
    figure = go.Figure(layout=layout(x=part_word, y=say_word))
    figure.add_bar(
        x=np.arange(1, len(tokens) + 1),
        y=says,
        customdata=tokens,
        marker_color=[WRONG if abs(say - 1) > 1e-9 else OURS for say in says],
        hovertemplate=f"{part_word} %{{x}}: %{{customdata}} {plain(token_word)}, ×%{{y:.2f}}<extra></extra>",
        showlegend=False,
    )
    figure.add_hline(y=1, line=GUIDE)
    figure.update_xaxes(title=TITLE, dtick=1 if len(tokens) <= 16 else 4)
    figure.update_yaxes(title=TITLE, showgrid=True, rangemode="tozero")
    return figure
