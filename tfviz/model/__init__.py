"""The Transformer from scratch, part by part: torch only."""

from tfviz.config import PRESETS, TransformerConfig
from tfviz.model.attention import scaled_dot_product_attention
from tfviz.model.kv_cache import KVCache
from tfviz.model.masks import make_causal_mask, make_pad_mask
from tfviz.model.multi_head import MultiHeadAttention
from tfviz.model.transformer import Transformer

__all__ = [
    "PRESETS",
    "KVCache",
    "MultiHeadAttention",
    "Transformer",
    "TransformerConfig",
    "make_causal_mask",
    "make_pad_mask",
    "scaled_dot_product_attention",
]
