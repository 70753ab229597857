"""Makes transformers' models compute attention through tfviz: one function, registered under one name.

The same name is registered for masks, else transformers passes none and a padded batch is silently wrong. Everything in
which architectures differ arrives as an argument: grouped heads, sliding windows and padding (in the mask), T5's
position bias, Gemma-2's soft cap, OPT's pre-scaled queries (scaling = 1).

A plain causal mask is left out (None) and the module says that it is causal, as transformers agreed with itself for
SDPA. Models that never ran on SDPA need not say so (NLLB-MoE's decoder does not): they get every mask written out.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from tfviz.errors import UnsupportedHere
from tfviz.model.attention import ScoreRule
from tfviz.model.attention_call import attend, current_call

NAME = "tfviz"
WITHOUT_EFFECT = {"position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"}  # in q, k or the mask
MASKED = "tfviz_masked"  # the same, no mask left out


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
    indices: Tensor | None = None,
    **more: object,
) -> tuple[Tensor, Tensor | None]:
    """transformers' contract: q, k, v as (batch, head, pos, dim) in; (batch, pos, head, dim) and weights out."""
    if s_aux is not None:
        raise UnsupportedHere("error.attention_sinks")
    unknown = [name for name, one in more.items() if isinstance(one, Tensor) and name not in WITHOUT_EFFECT]
    if unknown:
        raise UnsupportedHere("error.attention_argument", name=unknown[0])
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
    if indices is not None:  # DeepSeek-V3.2 attends to those keys of each query only
        chosen = _keys_left_out(indices, key.shape[2])
        blocked = chosen if blocked is None else blocked | chosen
    rule = ScoreRule(scale=scaling, causal=causal, softcap=softcap, bias=bias)
    output, weights = attend(module, query, key, value, blocked, rule, dropout)
    return output.transpose(1, 2).contiguous(), weights


def _keys_left_out(indices: Int[Tensor, "batch query chosen"], n_key: int) -> Bool[Tensor, "batch 1 query key"]:
    """True where a key is none of the chosen ones."""
    left_out = indices.new_ones((*indices.shape[:2], n_key), dtype=torch.bool)
    return left_out.scatter_(-1, indices.long(), False)[:, None]


def module_is_causal(module: nn.Module) -> bool:
    return bool(getattr(module, "is_causal", True))


def _every_mask(*arguments: Any, **options: Any) -> Tensor | None:
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*arguments, **options | skips)


def register() -> str:
    """Registers the bridge (again is harmless) and gives the name to load models with."""
    for name, mask in ((NAME, sdpa_mask), (MASKED, _every_mask)):
        AttentionInterface.register(name, bridge_attention)
        AttentionMaskInterface.register(name, mask)
    return NAME


def write_masks_out(model: Any) -> None:
    """Switches a loaded model to masks that are always there, if its `is_causal` cannot be relied on."""
    silent = any(getattr(module, "is_causal", None) is False for module in model.modules())
    if silent and not model._supports_sdpa:
        model.set_attn_implementation(MASKED)
