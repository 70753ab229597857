"""The precisions a model can run in: one table for the builder, the switch on the page and the tests."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from tfviz.inference.precision.cast import cast
from tfviz.inference.precision.int4 import to_int4
from tfviz.inference.precision.int8 import to_int8
from tfviz.inference.precision.int8_weights import to_int8_weights


@dataclass(frozen=True)
class Precision:
    """One way to hold a model's weights; `unsupported(device)`: None, or the key of the sentence that says why."""

    key: str
    label: str
    dtype: torch.dtype  # of the activations between layers
    convert: Callable[[nn.Module], nn.Module]  # resident FP32 model -> a new module; the resident one is never changed
    unsupported: Callable[[torch.device], str | None]


def _runs_anywhere(device: torch.device) -> str | None:
    return None


def _no_bfloat16(device: torch.device) -> str | None:
    missing = device.type == "cuda" and not torch.cuda.is_bf16_supported()
    return "precision.no_bfloat16" if missing else None


def _no_integer_product(device: torch.device) -> str | None:
    return None if device.type in {"cpu", "cuda"} else "precision.no_integer_product"


def _no_packed_int8(device: torch.device) -> str | None:
    if device.type == "cuda":
        return _no_bfloat16(device)
    there = device.type == "cpu" and hasattr(torch.ops.aten, "_weight_int8pack_mm")
    return None if there else "precision.no_packed_int8"


def _no_packed_product(device: torch.device) -> str | None:
    if device.type == "cpu":
        there = hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
    else:
        there = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)  # BF16 tensor cores
    return None if there else "precision.no_packed_product"


def _floating(key: str, label: str, dtype: torch.dtype, unsupported: Callable[[torch.device], str | None]) -> Precision:
    return Precision(key, label, dtype, partial(cast, dtype=dtype), unsupported)


PRECISIONS: dict[str, Precision] = {
    "fp32": _floating("fp32", "FP32", torch.float32, _runs_anywhere),
    "fp16": _floating("fp16", "FP16", torch.float16, _runs_anywhere),
    "bf16": _floating("bf16", "BF16", torch.bfloat16, _no_bfloat16),
    "int8_weights": Precision("int8_weights", "INT8 w", torch.bfloat16, to_int8_weights, _no_packed_int8),
    "int8": Precision("int8", "INT8", torch.float32, to_int8, _no_integer_product),
    "int4": Precision("int4", "INT4", torch.bfloat16, to_int4, _no_packed_product),
}


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and buffers, each storage counted once however many names it has."""
    tensors = (*module.parameters(), *module.buffers())
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
