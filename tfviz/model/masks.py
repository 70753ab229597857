"""Attention masks. Boolean, and True means *blocked* (the article's convention; `F.scaled_dot_product_attention` has it
the other way round, and only the flash kernel turns it over).
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def make_pad_mask(token_ids: Int[Tensor, "batch key"], pad_id: int) -> Bool[Tensor, "batch 1 1 key"]:
    """Blocks every key that is padding, for all heads and queries."""
    return (token_ids == pad_id)[:, None, None, :]


def find_padding(token_ids: Int[Tensor, "batch pos"], pad_id: int | None) -> Bool[Tensor, "batch pos"] | None:
    """Which positions are padding; None if none is, so that a batch without padding pays for no mask."""
    if pad_id is None:
        return None
    padding = token_ids == pad_id
    return padding if bool(padding.any()) else None


def count_positions(
    padding: Bool[Tensor, "batch pos"] | None, length: int, device: torch.device
) -> Int[Tensor, "#batch pos"]:
    """Each token's place among the tokens of its row that are no padding, so that left padding shifts nothing."""
    if padding is None:
        return torch.arange(length, device=device)[None]
    return ((~padding).cumsum(dim=1) - 1).clamp(min=0)


def make_causal_mask(
    n_query: int, n_key: int | None = None, *, device: torch.device | None = None
) -> Bool[Tensor, "query key"]:
    """Blocks the future: query i may see key j when j <= i + (n_key - n_query).

    With fewer queries than keys (decoding over a cache) the last query is the newest token and sees every key, so the
    triangle is aligned bottom right. `ValueError` if there are more queries than keys.
    """
    n_key = n_query if n_key is None else n_key
    if n_key < n_query:
        raise ValueError(f"a causal mask needs at least as many keys as queries; got n_query={n_query}, n_key={n_key}")
    key = torch.arange(n_key, device=device)
    return key > key[n_key - n_query :, None]


def make_window_mask(
    n_query: int, n_key: int | None = None, *, window: int, device: torch.device | None = None
) -> Bool[Tensor, "query key"]:
    """Blocks every key that is `window` or more positions away from its query, on either side (Mistral, Longformer).

    Aligned bottom right like the causal mask, which is what turns "either side" into "behind". `ValueError` for a
    window below 1 or more queries than keys.
    """
    n_key = n_query if n_key is None else n_key
    if n_key < n_query or window < 1:
        raise ValueError(
            f"a window mask needs window >= 1 and at least as many keys as queries; "
            f"got window={window}, n_query={n_query}, n_key={n_key}"
        )
    key = torch.arange(n_key, device=device)[None]
    return block_distant(key[:, n_key - n_query :], key, window)[0, 0]


def make_prefix_mask(positions: Int[Tensor, "batch pos"], *, prefix: int) -> Bool[Tensor, "batch 1 pos pos"]:
    """Blocks the future, except that everybody sees the first `prefix` tokens of the text (prefix-LM).

    `positions` are the tokens' places in their own text, so that padding and packing shift nothing. Raffel et al. 2020,
    figure 4, https://arxiv.org/abs/1910.10683. `ValueError` for a prefix below 0.
    """
    if prefix < 0:
        raise ValueError(f"a prefix mask needs prefix >= 0; got prefix={prefix}")
    future = make_causal_mask(positions.shape[1], device=positions.device)
    return (future & (positions >= prefix)[:, None])[:, None]


def make_document_mask(
    query_documents: Int[Tensor, "batch query"], key_documents: Int[Tensor, "batch key"] | None = None
) -> Bool[Tensor, "batch 1 query key"]:
    """Blocks every key of another document than the query's: several texts packed into one row stay strangers."""
    key_documents = query_documents if key_documents is None else key_documents
    return (query_documents[:, :, None] != key_documents[:, None, :])[:, None]


def block_distant(
    query_positions: Int[Tensor, "#batch query"], key_positions: Int[Tensor, "#batch key"], window: int
) -> Bool[Tensor, "#batch 1 query key"]:
    """The window mask of tokens that stand at these positions: padding between two of them does not part them."""
    distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()
    return (distance >= window)[:, None]


def combine_masks(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Blocked by any of them; None stands for a mask that blocks nothing."""
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else combined | mask
    return combined
