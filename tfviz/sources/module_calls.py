"""Which modules one forward pass calls, in order, and what each read and gave: how a model runs, read off the run.

Nothing is known of architectures here. Of tensors only the shape is kept and, inside a layer, the first rows, which is
enough to find out later which tensor was made of which (architecture.py).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tfviz.inference.precision.int4 import Int4Linear
from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.sources.base import LoadedModel, Prompt

ROWS = 24  # positions kept of a tensor: two different tensors that agree in all of them do not occur
SHORT = 128  # tokens up to which the output head runs for every position


@dataclass(frozen=True)
class Value:
    """A tensor as it passed by: its shape without the batch, and its first rows (None outside layers)."""

    shape: tuple[int, ...]
    rows: Tensor | None = None


NOTHING = Value(())


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module. `start` and `end` count the events of the pass."""

    path: str  # as in the checkpoint
    module: nn.Module
    start: int
    end: int
    read: Value
    gave: Value


@dataclass(frozen=True)
class AttentionRun:
    """Where in the pass the scores of one attention were computed, and over what."""

    path: str
    at: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    n_query: int
    n_key: int
    biased: bool  # something was added to the scores


@dataclass(frozen=True)
class Pass:
    """All of it, calls in the order in which they began."""

    calls: tuple[ModuleCall, ...]
    attentions: tuple[AttentionRun, ...]


def layer_paths(model: nn.Module) -> set[str]:
    """Modules that stand in a list of modules and in no other list: what a model may call its layers."""
    lists = {path for path, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    found = {path for path, _ in model.named_modules() if path.rpartition(".")[0] in lists}
    return {path for path in found if not any(path.startswith(f"{other}.") for other in found)}


def record_pass(loaded: LoadedModel, prompt: Prompt) -> Pass:
    """Runs the prompt once and says what was called."""
    model, paths = loaded.model, {id(module): path for path, module in loaded.model.named_modules()}
    calls: list[ModuleCall] = []
    attentions: list[AttentionRun] = []
    clock = iter(range(10**9))

    def watch(record: AttentionRecord) -> None:
        attentions.append(_attention(record, paths.get(id(record.module), ""), next(clock)))

    with _hooks(model, layer_paths(model), clock, calls):  # naive: every model can
        loaded.forward(prompt, AttentionCall("naive", watch), all_logits=prompt.n_tokens <= SHORT)
    return Pass(tuple(sorted(calls, key=lambda call: call.start)), tuple(attentions))


def _attention(record: AttentionRecord, path: str, at: int) -> AttentionRun:
    query, key, value = record.query, record.key, record.value
    heads, biased = (query.shape[1], key.shape[1], query.shape[3], value.shape[3]), record.rule.bias is not None
    return AttentionRun(path, at, *heads, query.shape[2], key.shape[2], biased)


@contextmanager
def _hooks(model: nn.Module, layers: set[str], clock: Iterator[int], calls: list[ModuleCall]) -> Iterator[None]:
    """Listens to every module, in this thread only: the model is shared."""
    mine, inside, started = threading.get_ident(), [0], dict[str, list[int]]()

    def before(path: str) -> None:
        if threading.get_ident() == mine:
            inside[0] += path in layers
            started.setdefault(path, []).append(next(clock))

    def after(path: str, module: nn.Module, read: Any, gave: Any) -> None:
        if threading.get_ident() == mine and started.get(path):
            keep = inside[0] > 0
            inside[0] -= path in layers
            call = ModuleCall(path, module, started[path].pop(), next(clock), _value(read, keep), _value(gave, keep))
            calls.append(call)

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda _, __, path=path: before(path)))
        hook: Any = lambda one, args, named, out, path=path: after(path, one, (args, named), out)  # noqa: E731
        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _value(found: Any, keep: bool) -> Value:
    """The first tensor of an argument list or output, batch row 0."""
    tensor = _first_tensor(found)
    if tensor is None:
        return NOTHING
    row = tensor[0] if tensor.dim() >= 3 or not tensor.is_floating_point() and tensor.dim() == 2 else tensor
    rows = row[:ROWS].cpu().clone() if keep and row.dim() == 2 and row.is_floating_point() else None
    return Value(tuple(row.shape), rows)


def _first_tensor(found: Any) -> Tensor | None:
    if isinstance(found, Tensor):
        return found
    values = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else ()
    return next((tensor for tensor in map(_first_tensor, values) if tensor is not None), None)


def own_weights(module: nn.Module) -> Iterator[tuple[str, Tensor, int]]:
    """(name, tensor, where it lies) of the weights of this very module; INT8 tables and packed INT4 count too."""
    tables = ((name, buffer) for name, buffer in module.named_buffers(recurse=False) if buffer.dtype == torch.int8)
    for name, tensor in (*module.named_parameters(recurse=False), *tables):
        yield name, tensor, tensor.data_ptr() or id(tensor)
    if isinstance(module, Int4Linear):  # its bytes hold two numbers each: counted as the matrix that they stand for
        yield "weight", module.weight, module.packed.data_ptr()
