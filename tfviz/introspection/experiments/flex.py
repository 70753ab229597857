"""flex_attention: attention whose mask is a Python function, compiled for this machine (here: causal or none).

Sources: Dong et al. 2024, https://arxiv.org/abs/2412.05496; torch.nn.attention.flex_attention
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

COMPILERS = ("g++", "clang++", "c++")


def hindrance(backward: bool, device: str) -> str | None:
    """Why it cannot be used here, as a word of the page: backward | compiler | device; None: it can be tried."""
    if backward:
        return "backward"  # torch has no backward of it on the CPU
    kind = torch.device(device).type
    if kind == "cpu":
        own = os.environ.get("CXX")
        return None if any(map(shutil.which, [own] if own else COMPILERS)) else "compiler"
    return None if kind == "cuda" else "device"


def prepare(setting: Any, device: str) -> str:
    """Compiles it for such arrays, with a first call: seconds, once. What PyTorch said if it failed, else ""."""
    from tfviz.introspection.experiments.kernels import calls_of

    try:
        calls_of(setting, device, ("flex",))["flex"]()
    except Exception as error:  # of the compiler, the C++ compiler it calls, or the driver: any kind
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return ""


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    output: Tensor = _compiled()(q, k, v, block_mask=mask)
    return output


def block_mask(n: int, causal: bool, device: str) -> Any:
    """Which blocks of 128 queries and 128 keys have something to look at; None: all of them."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_allowed, None, None, n, n, device=device) if causal else None


def _allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


@cache
def _compiled() -> Callable[..., Tensor]:
    from torch._inductor import config
    from torch.nn.attention.flex_attention import flex_attention

    config.compile_threads = 1  # no helper processes that stay
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True)
    return compiled
