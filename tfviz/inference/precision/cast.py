"""FP32, FP16 and BF16: the same module with its floating-point weights in another dtype."""

import copy
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of `model` whose float parameters and persistent buffers are of `dtype`; the model itself is not touched.

    As `from_pretrained(dtype=...)` does it: non-persistent buffers (RoPE's frequencies) stay FP32, as do the layers
    that a model declares too fine for FP16 (T5's `wo`). Tied weights stay tied; what already is of `dtype` is shared.
    """
    kept = _declared_fp32(model, dtype)
    memo: dict[int, object] = {}  # deepcopy takes its answer from here, so no FP32 weight is ever copied
    for name, parameter in model.named_parameters():
        converted = parameter if _any_part(kept, name) else _to(parameter, dtype)
        memo[id(parameter)] = (
            parameter if converted is parameter else nn.Parameter(converted, requires_grad=parameter.requires_grad)
        )
    for name, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                fixed = key in module._non_persistent_buffers_set or _any_part(kept, f"{name}.{key}")
                memo[id(buffer)] = buffer if fixed else _to(buffer, dtype)
    return copy.deepcopy(model, memo)


def _to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype) if tensor.is_floating_point() and tensor.dtype != dtype else tensor


def _declared_fp32(model: nn.Module, dtype: torch.dtype) -> set[str]:
    """Parts of parameter names that transformers' models declare as "keep in FP32" for this dtype."""
    attributes: dict[torch.dtype, list[str]] = {
        torch.float16: ["_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"],
        torch.bfloat16: ["_keep_in_fp32_modules_strict"],
    }
    return {part for attribute in attributes.get(dtype, []) for part in getattr(model, attribute, None) or ()}


def _any_part(parts: Iterable[str], name: str) -> bool:
    return any(re.search(rf"(^|\.){re.escape(part)}(\.|$)", name) for part in parts)
