"""Attention masks. Boolean, and True means *blocked* (the article's convention; `F.scaled_dot_product_attention` has it
the other way round, and only the flash kernel turns it over).
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def make_pad_mask(token_ids: Int[Tensor, "batch key"], pad_id: int) -> Bool[Tensor, "batch 1 1 key"]:
    """Blocks every key that is padding, for all heads and queries."""
    return (token_ids == pad_id)[:, None, None, :]


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
    query = torch.arange(n_key - n_query, n_key, device=device)
    return torch.arange(n_key, device=device) > query[:, None]
