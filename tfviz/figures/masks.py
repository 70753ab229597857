"""Attention masks for notebooks and papers: arrays in, `go.Figure` out. The page itself draws them on a canvas."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool

from tfviz.figures.theme import layout, plain, position_axis

BLOCKED, OPEN = "#c3c9d9", "#dbd9fb"
WORDS = ("key", "query", "blocked", "open")


def mask_map(
    blocked: Bool[np.ndarray, "query key"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    words: tuple[str, str, str, str] = WORDS,
) -> go.Figure:
    """One mask, True = blocked: row = query token, column = key token. `words`: key, query, blocked, open.

    `key_tokens` defaults to the query's (self-attention). `ValueError` if the tokens do not fit the array.
    """
    key_tokens = query_tokens if key_tokens is None else key_tokens
    if blocked.shape != (len(query_tokens), len(key_tokens)):
        raise ValueError(
            f"the mask is {blocked.shape}, but there are {len(query_tokens)} query and {len(key_tokens)} key tokens"
        )
    key, query, closed, free = words
    heat = go.Heatmap(
        z=blocked.astype(np.uint8),
        zmin=0,
        zmax=1,
        colorscale=[[0, OPEN], [1, BLOCKED]],
        showscale=False,
        xgap=1,
        ygap=1,
        hovertext=[
            [f"{plain(q)} ({i}) → {plain(k)} ({j}): {closed if blocked[i, j] else free}"
             for j, k in enumerate(key_tokens)] for i, q in enumerate(query_tokens)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(heat, layout=layout(x=key, y=query))
    figure.update_xaxes(**position_axis(key_tokens), tickangle=-90)
    return figure.update_yaxes(**position_axis(query_tokens), autorange="reversed")  # first token on top
