"""What an activation function costs in memory, counted by running it on paper: on tensors that have no bytes.

Fused ones (SiLU, PyTorch's GELU) keep their input for the backward pass, and nothing lives beside input and output.
GPT-2's GELU is written out, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): it keeps four, and four live at once.
"""

import weakref
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.activations import ACT2FN


class _Alive(TorchDispatchMode):
    """Counts tensors from the operation that makes them until nobody holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 1  # the input

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        if isinstance(made, Tensor) and not any(made is one for one in args):
            self.now += 1
            self.most = max(self.most, self.now)
            weakref.finalize(made, self._end)
        return made

    def _end(self) -> None:
        self.now -= 1


@lru_cache
def activation_tensors(name: str) -> tuple[int, int]:
    """(tensors that its backward pass reads beside its output, tensors alive at once with input and output)

    Of a name that transformers does not know: as of a fused one; ReLU reads its output alone.
    """
    if name not in ACT2FN:
        return int(name != "relu"), 2
    with torch.device("meta"):
        function, x = ACT2FN[name], torch.empty(4, requires_grad=True)
    plain = x.detach()
    kept: dict[int, Tensor] = {}

    def seen(tensor: Tensor) -> Tensor:
        if tensor.numel() == x.numel():
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with saved_tensors_hooks(seen, lambda tensor: tensor):
        out = function(x)
    kept.pop(out.untyped_storage()._cdata, None)
    with torch.no_grad(), _Alive() as alive:
        function(plain)
    return len(kept), alive.most
