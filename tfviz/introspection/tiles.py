"""One head of a trace, attended tile by tile: every number of the run, as arrays that a player walks over."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from tfviz.introspection.trace import LayerAttention
from tfviz.model.attention import ScoreRule, scaled_dot_product_attention
from tfviz.model.tiling import Tile, divide, tiles

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Tiling:
    """The state of each query's row after each block of keys, and the naive form's output beside it."""

    query_block: int
    key_block: int
    dim: int  # of q and k
    value: Float[Array, "key value_dim"]
    scores: Float[Array, "query key"]  # -inf where blocked; a wholly blocked tile's were never computed
    maximum: Float[Array, "query key_block"]
    total: Float[Array, "query key_block"]
    correction: Float[Array, "query key_block"]
    accumulator: Float[Array, "query key_block value_dim"]  # not divided by the total
    skipped: Bool[Array, "query_block key_block"]
    output: Float[Array, "query value_dim"]
    naive: Float[Array, "query value_dim"]


def head_tiling(layer: LayerAttention, head: int, query_block: int, key_block: int, limit: int) -> Tiling:
    """Of the first `limit` queries and keys at most; blocks that are larger than the text are cut to it."""
    group = head * len(layer.key) // len(layer.query)
    query = torch.from_numpy(layer.query[None, head : head + 1, :limit])
    key, value = (torch.from_numpy(array[None, group : group + 1, :limit]) for array in (layer.key, layer.value))
    n_query, n_key = query.shape[2], key.shape[2]
    blocked = _of_head(layer.blocked, head, limit)
    mask = blocked if bool(blocked.any()) else None
    rule = ScoreRule(
        layer.scale, False, layer.softcap, None if layer.bias is None else _of_head(layer.bias, head, limit)
    )
    sizes = {"query_block": min(query_block, n_query), "key_block": min(key_block, n_key)}
    with torch.inference_mode():
        naive, _ = scaled_dot_product_attention(query, key, value, mask, rule=rule)
        met = list(tiles(query, key, value, mask, rule, **sizes))
    kept = _gather(met, n_query, n_key, value.shape[3])
    return Tiling(
        query_block=sizes["query_block"],
        key_block=sizes["key_block"],
        dim=query.shape[3],
        value=value[0, 0].numpy(),
        naive=naive[0, 0].numpy(),
        **kept,
    )


def _gather(met: list[Tile], n_query: int, n_key: int, value_dim: int) -> dict[str, Array]:
    across = sum(tile.rows.start == 0 for tile in met)
    names = ("maximum", "total", "correction")
    kept = {name: np.zeros((n_query, across), dtype=np.float32) for name in names}
    kept["accumulator"] = np.zeros((n_query, across, value_dim), dtype=np.float32)
    kept["scores"] = np.full((n_query, n_key), -np.inf, dtype=np.float32)
    kept["output"] = np.zeros((n_query, value_dim), dtype=np.float32)
    kept["skipped"] = np.array([tile.scores is None for tile in met]).reshape(-1, across)
    for at, tile in enumerate(met):
        j = at % across
        for name in names:
            kept[name][tile.rows, j] = getattr(tile.after, name)[0, 0].numpy()
        kept["accumulator"][tile.rows, j] = tile.after.output[0, 0].numpy()
        if tile.scores is not None:
            kept["scores"][tile.rows, tile.columns] = tile.scores[0, 0].numpy()
        if j == across - 1:
            kept["output"][tile.rows] = divide(tile.after)[0, 0].numpy()
    return kept


def _of_head(array: Array, head: int, limit: int) -> torch.Tensor:
    """(1, 1, query, key) of an array that all heads share or that has one slice a head."""
    one = array[head if len(array) > 1 else 0, :limit, :limit]
    return torch.tensor(one)[None, None]
