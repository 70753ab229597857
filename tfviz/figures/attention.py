"""Attention pictures for notebooks and papers: arrays in, `go.Figure` out. The page itself draws on a canvas."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from tfviz.figures.theme import WEIGHT_SCALE, layout, plain, position_axis


def attention_heatmap(
    weights: Float[np.ndarray, "query key"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    title: str = "",
) -> go.Figure:
    """One head: row = query token, column = key token, ink = sqrt(weight), so that small weights show.

    `key_tokens` defaults to the query's (self-attention). `ValueError` if the tokens do not fit the array.
    """
    key_tokens = query_tokens if key_tokens is None else key_tokens
    if weights.shape != (len(query_tokens), len(key_tokens)):
        raise ValueError(
            f"weights are {weights.shape}, but there are {len(query_tokens)} query and {len(key_tokens)} key tokens"
        )
    heat = go.Heatmap(
        z=np.sqrt(weights),
        customdata=weights,
        zmin=0,
        zmax=1,
        colorscale=WEIGHT_SCALE,
        colorbar={"tickvals": np.sqrt([0, 0.05, 0.25, 0.5, 1]), "ticktext": ["0", ".05", ".25", ".5", "1"]},
        hovertext=[[f"{plain(q)} ({i}) → {plain(k)} ({j})" for j, k in enumerate(key_tokens)]
                   for i, q in enumerate(query_tokens)],
        hovertemplate="%{hovertext}: %{customdata:.3f}<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(heat, layout=layout(plain(title), x="key (attended to)", y="query (attending)"))
    figure.update_xaxes(**position_axis(key_tokens), tickangle=-90)
    return figure.update_yaxes(**position_axis(query_tokens), autorange="reversed")  # first token on top


def head_overview(weights: Float[np.ndarray, "layer head query key"], *, title: str = "") -> go.Figure:
    """Every head of every layer as one tiled heatmap: row = layer, column = head, a gap of one cell between heads."""
    n_layers, n_heads, n_query, n_key = weights.shape
    tiles = np.full((n_layers, n_query + 1, n_heads, n_key + 1), np.nan, dtype=np.float32)
    tiles[:, :n_query, :, :n_key] = np.sqrt(weights).transpose(0, 2, 1, 3)
    heat = go.Heatmap(
        z=tiles.reshape(n_layers * (n_query + 1), n_heads * (n_key + 1)),
        zmin=0,
        zmax=1,
        colorscale=WEIGHT_SCALE,
        showscale=False,
        hoverinfo="skip",
    )
    figure = go.Figure(heat, layout=layout(plain(title), x="head", y="layer"))
    middle = {"tickmode": "array"}
    figure.update_xaxes(
        **middle,
        tickvals=[h * (n_key + 1) + n_key / 2 for h in range(n_heads)],
        ticktext=[str(h) for h in range(n_heads)],
    )
    return figure.update_yaxes(
        **middle,
        tickvals=[layer * (n_query + 1) + n_query / 2 for layer in range(n_layers)],
        ticktext=[str(layer) for layer in range(n_layers)],
        autorange="reversed",
    )
