"""Training pictures: learning rates by step, what label smoothing asks for, and what a loss makes of confidence."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import SERIES, layout, plain

Steps = Int[np.ndarray, " point"]
Rates = Float[np.ndarray, "_"]  # as many as there are steps

TITLE = {"font": {"size": 13}, "standoff": 12}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}


def learning_rates(
    steps: Steps,
    rates: Mapping[str, Rates],
    *,
    log_steps: bool = False,
    log_rates: bool = False,
    words: Sequence[str] = ("step", "learning rate", "peak"),
) -> go.Figure:
    """One line a schedule, its highest point marked; `words` are the titles of the axes and of the mark.

    `ValueError` if a curve has not one rate a step. On a logarithmic axis what is 0 is left out.
    """
    step_word, rate_word, peak_word = words
    figure = go.Figure(layout=layout(x=step_word, y=rate_word))
    for i, (name, curve) in enumerate(rates.items()):
        if curve.shape != steps.shape:
            raise ValueError(f"{name} has {len(curve)} rates for {len(steps)} steps")
        top = int(curve.argmax())
        shown = np.where(curve > 0, curve, np.nan) if log_rates else curve
        mark = f"{peak_word} {curve[top]:.3g}, {step_word} {int(steps[top]):,}"
        _marked_line(figure, i, name, steps, shown, top, f"{step_word} %{{x:,}}: %{{y:.3e}}", mark)
    figure.update_xaxes(type="log" if log_steps else "linear", title=TITLE)
    figure.update_yaxes(type="log" if log_rates else "linear", title=TITLE, exponentformat="power", showgrid=True)
    return figure.update_layout(legend=LEGEND, hovermode="closest")


def target_distributions(
    targets: Mapping[str, Float[np.ndarray, " vocab"]],
    right: int,
    padding: int,
    *,
    words: Sequence[str] = ("token", "target probability", "right token", "padding"),
) -> go.Figure:
    """Bars of the probability that each token is asked to have, one colour a definition; two tokens by their names."""
    token_word, probability_word, right_word, padding_word = words
    figure = go.Figure(layout=layout(x=token_word, y=probability_word))
    for i, (name, q) in enumerate(targets.items()):
        hover = f"{token_word} %{{x}}: %{{y:.4g}}<extra>{plain(name)}</extra>"
        figure.add_bar(
            x=np.arange(len(q)), y=q, name=plain(name), marker_color=SERIES[i % len(SERIES)], hovertemplate=hover
        )
    n = max(map(len, targets.values()), default=0)
    names = {right: right_word, padding: padding_word}
    figure.update_xaxes(tickvals=list(range(n)), ticktext=[names.get(i, str(i)) for i in range(n)], title=TITLE)
    figure.update_yaxes(showgrid=True, title=TITLE)
    return figure.update_layout(barmode="group", legend=LEGEND)


def losses_by_confidence(
    confidence: Float[np.ndarray, " point"],
    losses: Mapping[str, Float[np.ndarray, " point"]],
    *,
    words: Sequence[str] = ("probability of the right token", "loss", "lowest"),
    mark_at: Callable[[np.ndarray], int | np.integer] = np.argmin,
) -> go.Figure:
    """One line a definition over the probability that a model gives the right token; the point `mark_at` marked."""
    x_word, y_word, lowest = words
    figure = go.Figure(layout=layout(x=x_word, y=y_word))
    for i, (name, loss) in enumerate(losses.items()):
        at = int(mark_at(loss))
        mark = f"{lowest} {loss[at]:.3f}, {confidence[at]:.3f}"
        _marked_line(figure, i, name, confidence, loss, at, "%{x:.3f}: %{y:.3f}", mark)
    figure.update_xaxes(title=TITLE, range=[0, 1.02], dtick=0.2)
    figure.update_yaxes(showgrid=True, title=TITLE)
    return figure.update_layout(legend=LEGEND, hovermode="closest")


def _marked_line(
    figure: go.Figure, i: int, name: str, x: np.ndarray, y: np.ndarray, at: int, hover: str, mark: str
) -> None:
    """The i-th line of a figure and a dot on its point `at`; beyond the colours lines are dashed, then dotted."""
    color, dash = SERIES[i % len(SERIES)], ("solid", "dash", "dot")[i // len(SERIES) % 3]
    extra = f"<extra>{plain(name)}</extra>"
    line = {"color": color, "width": 2.5, "dash": dash}
    figure.add_scatter(x=x, y=y, name=plain(name), mode="lines", line=line, hovertemplate=hover + extra)
    dot, here = {"color": color, "size": 9}, slice(at, at + 1)
    figure.add_scatter(x=x[here], y=y[here], mode="markers", marker=dot, hovertemplate=mark + extra, showlegend=False)
