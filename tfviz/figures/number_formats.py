"""Numbers of 16 bits: where gradients lie in them, and how far each format reaches."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import SERIES, SOFT, layout, plain

TITLE = {"font": {"size": 13}, "standoff": 12}
LOST, WEAK, OVER = "rgba(219,39,119,0.13)", "rgba(217,119,6,0.13)", "rgba(219,39,119,0.13)"


def gradient_histogram(
    middles: Float[np.ndarray, " bin"],
    shares: Float[np.ndarray, " bin"],
    limits: Sequence[float],
    *,
    words: Sequence[str] = ("log10 of the size", "share", "becomes 0", "fewer digits", "∞"),
) -> go.Figure:
    """Shares of gradients by log10 of their size, over what a format makes of them.

    `limits` are log10 of: the largest value that becomes 0, the smallest with all digits, the largest that is finite.
    """
    size_word, share_word, *region_words = words
    zero, normal, largest = limits
    figure = go.Figure(layout=layout(x=size_word, y=share_word))
    width = float(middles[1] - middles[0]) if len(middles) > 1 else 1.0
    figure.add_bar(
        x=middles,
        y=100 * shares,
        width=width * 0.86,
        marker={"color": SERIES[0], "line": {"width": 0}},
        hovertemplate="10^%{x:.2f}: %{y:.2f} %<extra></extra>",
        showlegend=False,
    )
    low = min(float(middles[0]) - width, zero - 4)
    high = max(float(middles[-1]) + width, largest + 3)
    regions = ((low, zero, LOST), (zero, normal, WEAK), (largest, high, OVER))
    for (start, end, color), word in zip(regions, region_words, strict=True):
        figure.add_vrect(x0=start, x1=end, fillcolor=color, line_width=0, layer="below")
        figure.add_annotation(
            x=(start + end) / 2,
            y=1,
            yref="paper",
            yanchor="bottom",
            text=plain(word).replace("\n", "<br>"),
            showarrow=False,
            font={"size": 12, "color": SOFT},
        )
    figure.update_xaxes(range=[low, high], title=TITLE, dtick=4, tickprefix="10<sup>", ticksuffix="</sup>")
    figure.update_yaxes(title=TITLE, ticksuffix=" %", showgrid=True)
    return figure.update_layout(hovermode="closest", bargap=0)


def format_ranges(
    ranges: Mapping[str, Sequence[float]],
    seen: Sequence[float],
    *,
    words: Sequence[str] = ("log10 of the size", "all digits", "fewer digits", "the gradients"),
) -> go.Figure:
    """A bar a format from its smallest to its largest value, and a band where the gradients lie.

    `ranges`: name -> log10 of (the smallest positive value, the smallest with all its digits, the largest).
    """
    size_word, normal_word, weak_word, seen_word = words
    figure = go.Figure(layout=layout(x=size_word))
    names = [plain(name) for name in ranges]
    smallest, normal, largest = np.array(list(ranges.values()), dtype=float).T
    for word, start, end, color in (
        (weak_word, smallest, normal, SERIES[1]),
        (normal_word, normal, largest, SERIES[0]),
    ):
        hover = "%{y}: 10^%{base:.1f} – 10^%{customdata:.1f}"
        figure.add_bar(
            y=names,
            x=end - start,
            base=start,
            customdata=end,
            orientation="h",
            width=0.42,
            name=plain(word),
            marker={"color": color, "line": {"width": 0}},
            hovertemplate=f"{hover}<extra>{plain(word)}</extra>",
        )
    figure.add_vrect(x0=seen[0], x1=seen[1], fillcolor="rgba(14,159,184,0.22)", line_width=0, layer="below")
    figure.add_bar(y=[None], x=[None], name=plain(seen_word), marker={"color": "rgba(14,159,184,0.35)"})
    figure.update_xaxes(range=[-47, 41], title=TITLE, dtick=20, tickprefix="10<sup>", ticksuffix="</sup>")
    figure.update_yaxes(autorange="reversed", showline=False, ticks="")
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    return figure.update_layout(barmode="overlay", hovermode="closest", legend=legend)
