"""One operator of a pass as an `Operation`: what its shapes say about FLOPs, bytes and the kernel that computes it.

product      2 m k n, of every matrix of a batch
attention    2 h n m (d_k + d_v)
the rest     one for each element; bytes: each operand and result once
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tfviz.inference.roofline import Operation, Route

CURVES = {"silu", "gelu", "exp", "tanh", "sigmoid", "softmax", "safe_softmax", "pow", "rsqrt", "cos", "sin"}
PRODUCTS = {
    "linear": "linear", "addmm": "linear", "mm": "linear", "matmul": "linear", "bmm": "linear", "_int_mm": "int_mm",
    "_weight_int8pack_mm": "int8pack", "_weight_int4pack_mm_for_cpu": "int4pack", "_weight_int4pack_mm": "int4pack",
}  # fmt: skip
REDUCTIONS = {"mean", "sum", "amax", "var", "layer_norm", "native_layer_norm", "rms_norm", "fused_rms_norm"}
LOOKED_UP = {"embedding", "index", "index_select", "gather"}
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "int8"}


def product_of(name: str, read: Sequence[Tensor], gave: Tensor, weighted: bool) -> Operation:
    """2 m k n, of every matrix of a batch."""
    op, bias = PRODUCTS[name], None
    if name == "addmm":
        bias, *read = read
    x, weight = read[:2]
    inner, outer = x.shape[-1], gave.shape[-1]
    if name == "linear":
        bias = read[2] if len(read) > 2 else None
        by_columns = _by_columns(weight)
    else:
        by_columns = op == "linear" and _by_columns(weight.transpose(-1, -2)) if weight.dim() > 1 else False
    rows = gave.numel() // max(outer, 1)
    weights = sum(map(_nbytes, read[1:] if op != "linear" else [weight]))
    dtype = DTYPES.get(x.dtype, "fp32") if op != "int_mm" else "int8"
    route = Route(op, dtype, by_columns, bool(torch._C._get_mkldnn_enabled()), bias is not None)  # type: ignore[attr-defined]
    nbytes = _nbytes(x) + weights + _nbytes(gave)
    return Operation("product", route, rows, inner, outer, 2 * rows * inner * outer, nbytes, weights * weighted)


def _by_columns(weight: Tensor) -> bool:
    """Of [out, in]."""
    return weight.dim() == 2 and weight.stride(0) == 1 and weight.shape[0] > 1


def attention_of(args: Sequence[Any], gave: Tensor) -> Operation:
    """2 h n m (d_k + d_v), every pair of query and key counted, whether the kernel skips blocked ones or not."""
    q, k, v = args[:3]
    masked = any(isinstance(one, Tensor) for one in args[3:])
    op = "masked" if masked else "causal" if any(one is True for one in args[3:]) and q.shape[-2] > 1 else "full"
    heads, rows, keys = q.numel() // (q.shape[-2] * q.shape[-1]), q.shape[-2], k.shape[-2]
    width = q.shape[-1] + v.shape[-1]
    nbytes, flops = sum(map(_nbytes, (q, k, v, gave))), 2 * heads * rows * keys * width
    return Operation("attention", Route(op, DTYPES[q.dtype]), rows, keys, width // 2, flops, nbytes)


def elementwise_of(name: str, func: Any, read: Sequence[Tensor], gave: Sequence[Tensor]) -> Operation:
    """A view, a curve, or a pass over its operands; `inner` is how many elements the largest of them has."""
    plain = name.strip("_")
    route = Route(plain, DTYPES.get(gave[0].dtype, "fp32") if gave else "fp32")
    places = {one.untyped_storage().data_ptr() for one in read}
    same = all(one.untyped_storage().data_ptr() in places for one in gave)
    if not gave or (same and not func._schema.is_mutable):
        return Operation("view", Route(plain), 1, 0, 0, 0, 0)
    given = sum(map(_nbytes, gave))
    nbytes = 2 * given if name in LOOKED_UP else given + sum(map(_nbytes, read))
    n = max((one.numel() for one in (gave if name in LOOKED_UP else (*gave, *read))), default=1)
    kind = "curve" if plain in CURVES else "reduce" if plain in REDUCTIONS else "pass"
    return Operation(kind, route, 1, n, 1, n, nbytes)


def tensors(value: Any) -> Iterator[Tensor]:
    """Those among an operator's arguments or results."""
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (tuple, list)):
            yield from tensors(one)


def _nbytes(one: Tensor) -> int:
    """What lies in memory of it: a broadcast axis takes none."""
    numbers = 1
    for size, stride in zip(one.shape, one.stride(), strict=True):
        numbers *= size if stride else 1
    return numbers * one.element_size()
