"""The Transformer's parts, from scratch: torch only."""

from tfviz.model.attention import scaled_dot_product_attention
from tfviz.model.masks import make_causal_mask, make_pad_mask

__all__ = ["make_causal_mask", "make_pad_mask", "scaled_dot_product_attention"]
