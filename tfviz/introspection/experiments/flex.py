"""flex_attention: attention whose mask is a Python function, compiled for this machine (here: causal or none).

Sources: Dong et al. 2024, https://arxiv.org/abs/2412.05496; torch.nn.attention.flex_attention
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

COMPILERS = ("g++", "clang++", "c++")
Kind = tuple[str, str, bool]  # device, number format, causal
_took: dict[Kind, dict[int, float]] = {}  # seconds of the first call at each n: the first ones compile


def hindrance(backward: bool, device: str) -> str | None:
    """Why it cannot be used here, without trying it: backward | compiler | instructions | triton | device."""
    if backward:
        return "backward"  # torch has no backward of it on the CPU
    where = torch.device(device)
    if where.type == "cpu":
        own = os.environ.get("CXX")
        if not any(map(shutil.which, [own] if own else COMPILERS)):
            return "compiler"
        return None if torch.cpu._is_avx2_supported() else "instructions"
    if where.type == "cuda":
        return None if find_spec("triton") and torch.cuda.get_device_capability(where) >= (7, 0) else "triton"
    return "device"


@dataclass(frozen=True)
class Prepared:
    """How long a first call took, and what PyTorch said if it failed, else ""."""

    seconds: float
    failed: str = ""


def prepare(setting: Any, device: str) -> Prepared:
    """A first call, which compiles it for such arrays: many seconds once, and next to nothing afterwards."""
    from tfviz.introspection.experiments.kernels import calls_of, graph_mode

    begun, failed = time.perf_counter(), ""
    try:
        with graph_mode(setting):
            calls_of(setting, device, ("flex",))["flex"]()
    except Exception as error:  # of the compiler, the C++ compiler it calls, or the driver: any kind
        failed = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    took = time.perf_counter() - begun
    if not failed:
        _took.setdefault(_kind(setting, device), {}).setdefault(setting.n, took)
    return Prepared(took, failed)


def compile_ahead(setting: Any, device: str) -> float | None:
    """Seconds that compiling for such arrays will take: 0 if it was done, as long as others took; None: unknown."""
    known = {kind: sum(each.values()) for kind, each in _took.items()}
    return 0.0 if _kind(setting, device) in known else max(known.values(), default=None)


def _kind(setting: Any, device: str) -> Kind:
    return torch.device(device).type, setting.dtype, setting.causal


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
