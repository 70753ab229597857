"""Weights laid side by side when a model is loaded, so that one product does the work of two or three.

    q | k | v   one matrix [q + k + v, in]      gate | up   one matrix [gate + up, in]

The modules' own parameters become views of it: no value changes, no byte is held twice, and every module still finds
its weight where it was. In FP32 on the CPU the joined matrices and the output head lie column by column (a transposed
view): MKL multiplies one row with a matrix of short rows at about half the memory's speed, and by columns at all of it.
Packed INT4 keeps its own order, in which whole blocks of outputs follow one another.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tfviz.inference.precision.int4 import Int4Linear, packed_block

JOINED = (("self_attn", ("q_proj", "k_proj", "v_proj")), ("mlp", ("gate_proj", "up_proj")))


def lay_side_by_side(model: nn.Module) -> nn.Module:
    """Gives `model`, which nobody else has yet, the joined storage where its layers have such projections."""
    users = _users(model)
    for layer in list(model.modules()):
        for part, names in JOINED:
            projections: list[Any] = [getattr(getattr(layer, part, None), name, None) for name in names]
            if all(type(one) is nn.Linear and len(users[id(one.weight)]) == 1 for one in projections):
                _join(projections)
            if all(type(one) is Int4Linear for one in projections):
                _join_packed(projections)
    get_head: Any = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    if type(head) is nn.Linear:
        weight = nn.Parameter(_laid(head.weight.detach()), requires_grad=False)
        for module, name in users[id(head.weight)]:  # a tied table is looked up in the same storage
            setattr(module, name, weight)
        if weight.device.type == "cpu" and weight.dtype != torch.float32:
            head.register_forward_pre_hook(one_row)
    return model


def one_row(head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The last of n positions is one row with the strides of all n, and for such a row oneDNN first copies the whole
    weight (54 MiB in SmolLM2); with strides of its own it does not."""
    x, *rest = args
    return (x.flatten().view(x.shape), *rest) if x.shape[:-1].numel() == 1 else args


def _users(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Who holds each parameter, and under which name: more than one where weights are tied."""
    users: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            users.setdefault(id(parameter), []).append((module, name))
    return users


def _laid(weight: Tensor) -> Tensor:
    """[out, in], in memory column by column or row by row: whichever one row is multiplied with faster."""
    by_columns = weight.dtype == torch.float32 and weight.device.type == "cpu"
    return weight.t().contiguous().t() if by_columns else weight.contiguous()


def _join(projections: Sequence[nn.Linear]) -> None:
    if len({(one.weight.dtype, one.weight.device, one.in_features) for one in projections}) > 1:
        return
    whole = _laid(torch.cat([one.weight.detach() for one in projections]))  # [out + out + .., in]
    for one, weight in zip(projections, whole.split([one.out_features for one in projections]), strict=True):
        one.weight = nn.Parameter(weight, requires_grad=False)


def _join_packed(projections: Sequence[Int4Linear]) -> None:
    """Packed outputs lie in blocks, so whole blocks of several weights are those of the joined one."""
    block = packed_block()
    apart = len({(one.packed.device, one.in_features) for one in projections}) > 1
    if apart or block is None or projections[0].packed.is_cuda or any(one.out_features % block for one in projections):
        return
    whole = torch.cat([one.packed for one in projections])  # uint8 [out + out + .., in / 2]
    for one, packed in zip(projections, whole.split([one.out_features for one in projections]), strict=True):
        one.packed = packed


def joined(weights: Sequence[Tensor]) -> Tensor | None:
    """The one matrix [sum of out, in] that these are neighbouring rows of; None where they lie apart. No copy."""
    first, place = weights[0], weights[0].storage_offset()
    for weight in weights:
        same = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or weight.stride() != first.stride() or weight.storage_offset() != place:
            return None
        place += weight.shape[0] * weight.stride(0)
    return first.as_strided((sum(weight.shape[0] for weight in weights), first.shape[1]), first.stride())
