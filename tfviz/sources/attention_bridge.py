"""Makes transformers' models compute attention through tfviz: one function, registered under one name.

The same name is registered for masks, else transformers passes none and a padded batch is silently wrong. Everything in
which architectures differ arrives as an argument: grouped heads, sliding windows and padding (in the mask), T5's
position bias, Gemma-2's soft cap, OPT's pre-scaled queries (scaling = 1).
"""

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from tfviz.errors import UnsupportedHere
from tfviz.model.attention import ScoreRule
from tfviz.model.attention_call import attend, current_call

NAME = "tfviz"


def bridge_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor | None]:
    """transformers' contract: q, k, v as (batch, head, pos, dim) in; (batch, pos, head, dim) and weights out."""
    if s_aux is not None:
        raise UnsupportedHere("error.attention_sinks")
    n_query = query.shape[2]
    causal = module_is_causal(module) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and n_query > 1
    if causal and key.shape[2] > n_query:  # a static cache whose tail is still empty
        key, value = key[:, :, :n_query], value[:, :, :n_query]
        position_bias = None if position_bias is None else position_bias[..., :n_query]
    call, blocked, bias = current_call(), None, position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        blocked = call.blocked(attention_mask)  # transformers: True = allowed
    elif attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    rule = ScoreRule(scale=scaling, causal=causal, softcap=softcap, bias=bias)
    output, weights = attend(module, query, key, value, blocked, rule, dropout)
    return output.transpose(1, 2).contiguous(), weights


def module_is_causal(module: nn.Module) -> bool:
    return bool(getattr(module, "is_causal", True))


def register() -> str:
    """Registers the bridge (again is harmless) and gives the name to load models with."""
    AttentionInterface.register(NAME, bridge_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
