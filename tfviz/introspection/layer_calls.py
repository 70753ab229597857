"""One pass of any model with every projection, norm and block inside its layers watched: what went in, what came out.

A layer is found from its attention: the nearest ancestor that stands in a ModuleList and has weights beside that
attention and norms (in T5 the attention's own entry has none, the block around it has). Hooks are the process's, not
the model's, and see the thread of this pass only: the resident model is not touched.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.sources.base import LoadedModel, Prompt

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Step:
    """A module that ran: the first tensor it read and the first it gave, FP32 on the CPU."""

    module: nn.Module
    role: str  # linear | norm | block (an entry of a ModuleList, or its direct child)
    before: Float[Array, "pos features"] | None  # None: not one row a position (norms inside a head)
    after: Float[Array, "pos features"] | None
    eps: float  # relative spacing of the numbers it computed with


@dataclass(frozen=True, eq=False)
class Attended:
    """An attention that ran, in the layer's sequence of steps."""

    module: nn.Module
    query: Float[Array, "head query dim"]  # positions applied
    key: Float[Array, "kv_head key dim"]
    value: Float[Array, "kv_head key value_dim"]

    @property
    def joined_shape(self) -> tuple[int, int]:
        """(query, heads * value_dim): what W_O reads."""
        return self.query.shape[1], len(self.query) * self.value.shape[2]


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One layer's run: the stream it read and gave, and what happened between."""

    side: str  # self | encoder | decoder
    index: int
    whole: Step
    steps: list[Step | Attended]

    @property
    def attentions(self) -> list[Attended]:
        return [step for step in self.steps if isinstance(step, Attended)]

    @property
    def eps(self) -> float:
        """Of the coarsest numbers in it: a model in FP16 may keep some projections in FP32 (T5)."""
        return max(step.eps for step in (self.whole, *self.steps) if isinstance(step, Step))

    def of_role(self, role: str) -> list[Step]:
        return [step for step in self.steps if isinstance(step, Step) and step.role == role]


def is_linear(module: Any) -> bool:
    """A linear layer by what it has: nn.Linear, its INT8 stand-in, transformers' Conv1D (`nx`, `nf`)."""
    return not any(module.children()) and (hasattr(module, "in_features") or hasattr(module, "nf"))


def features(module: Any) -> tuple[int, int]:
    """(in, out) of a linear layer."""
    return (module.in_features, module.out_features) if hasattr(module, "in_features") else (module.nx, module.nf)


def is_norm(module: nn.Module) -> bool:
    return not any(module.children()) and "norm" in type(module).__name__.lower()


def layers_of(loaded: LoadedModel) -> list[nn.Module]:
    """Every block that a ModuleList holds, the outermost of each nesting: where the layers are."""
    found: list[nn.Module] = []
    for block in _blocks(loaded.model):
        if not any(block in set(other.modules()) for other in found):
            found.append(block)
    return found


def observe(loaded: LoadedModel, prompt: Prompt) -> list[LayerCall]:
    """The layers of one naive pass, in the order in which they ended; empty if no attention went past us.

    `UnsupportedHere` where any of them gives what is no number.
    """
    watcher = _Watcher(_roles(loaded.model))
    handle = register_module_forward_hook(watcher.after, with_kwargs=True)
    try:
        loaded.forward(prompt, AttentionCall("naive", watcher.attended), all_logits=False)
    finally:
        handle.remove()
    blocks = [step.after for step in watcher.steps if isinstance(step, Step) and step.role == "block"]
    if not all(np.isfinite(rows).all() for rows in blocks if rows is not None):  # behind the last logits that were made
        loaded.forward(prompt, AttentionCall("naive"))  # says so, with all of them
    return list(_cut(loaded, watcher.steps))


@dataclass
class _Watcher:
    roles: dict[nn.Module, str]
    steps: list[Step | Attended] = field(default_factory=list)
    kept: dict[int, Array] = field(default_factory=dict)  # address -> its copy
    thread: int = field(default_factory=threading.get_ident)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        role = self.roles.get(module)
        if role is None or threading.get_ident() != self.thread:
            return
        read, gave = _tensor((*args, *kwargs.values())), _tensor(output)
        if read is not None and gave is not None:
            eps = torch.finfo(gave.dtype).eps
            self.steps.append(Step(module, role, self._keep(read), self._keep(gave), eps))

    def attended(self, record: AttentionRecord) -> None:
        arrays = (one[0].float().cpu().numpy() for one in (record.query, record.key, record.value))
        self.steps.append(Attended(record.module, *arrays))

    def _keep(self, tensor: Tensor) -> Array | None:
        """A copy (some models add in place); one and the same array as long as address and contents are the same."""
        if tensor.dim() > 3 or (tensor.dim() == 3 and len(tensor) != 1):
            return None
        rows = tensor.reshape(-1, tensor.shape[-1]).float().cpu().numpy()
        known = self.kept.get(tensor.data_ptr())
        if known is None or known.shape != rows.shape or not np.array_equal(known, rows):
            self.kept[tensor.data_ptr()] = known = rows.copy()
        return known


def _tensor(value: Any) -> Tensor | None:
    """The first tensor of numbers in what a module was given or gave."""
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(one, Tensor) and one.is_floating_point() and one.dim() >= 2:
            return one
    return None


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            yield from module


def _roles(model: nn.Module) -> dict[nn.Module, str]:
    """What is worth watching, and as what: all that is inside blocks; not the embeddings, not the output head."""
    roles: dict[nn.Module, str] = {}
    for block in _blocks(model):
        for module in (block, *block.children()):
            roles.setdefault(module, "block")
        for module in block.modules():
            if is_linear(module) or is_norm(module):
                roles[module] = "linear" if is_linear(module) else "norm"
    return roles


def _cut(loaded: LoadedModel, steps: list[Step | Attended]) -> Iterator[LayerCall]:
    """The steps in pieces, one for each run of a layer; a shared layer (ALBERT) runs several times."""
    parents = {child: parent for parent in loaded.model.modules() for child in parent.children()}
    found = (_layer_around(step.module, parents) for step in steps if isinstance(step, Attended))
    inside = {layer: set(layer.modules()) for layer in found if layer is not None}
    encoder, own = loaded.encoder_modules(), "decoder" if loaded.family == "encoder-decoder" else "self"
    counts: dict[str, int] = {}
    pending: list[Step | Attended] = []
    for step in steps:
        if isinstance(step, Attended) or step.module not in inside:
            pending.append(step)
            continue
        side = "encoder" if step.module in encoder else own
        mine = [one for one in pending if one.module in inside[step.module]]
        yield LayerCall(side, counts.get(side, 0), step, mine)
        counts[side] = counts.get(side, 0) + 1
        pending = []


def _layer_around(attention: nn.Module, parents: dict[nn.Module, nn.Module]) -> nn.Module | None:
    own, module = set(attention.modules()), attention
    while module in parents:
        rest = (one for one in module.modules() if one not in own and not is_norm(one))
        alone = not any(is_linear(one) or any(True for _ in one.parameters(recurse=False)) for one in rest)
        if isinstance(parents[module], nn.ModuleList) and not alone:
            return module
        module = parents[module]
    return None
