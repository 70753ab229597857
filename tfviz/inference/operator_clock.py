"""A clock around every operator of a thread, inside the real pass, in the model's own order.

    with OperatorClock() as clock: model(x)        clock.seconds: one for each operator, clock.names: which

torch's dispatch mode hands over each operator before it runs. Reading the clock has its price, which `reading_cost`
measures on an operator that does next to nothing; who adds seconds up takes it off each.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tfviz.inference.measure import Latency, _synchronise

Seen = Callable[[Any, Sequence[Any], Any], None]  # operator, arguments, output


class OperatorClock(TorchDispatchMode):
    """Operators of this thread only; those that an operator calls itself are part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _synchronise()
        start = time.perf_counter()
        output = func(*args, **(kwargs or {}))
        _synchronise()
        self.seconds.append(time.perf_counter() - start)
        self.names.append(func.__name__)
        return output


class OperatorWatch(TorchDispatchMode):
    """Tells `seen` of every operator, untimed."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.seen(func, (*args, *(kwargs or {}).values()), output)
        return output


class Medley:
    """Some twenty small operators of many kinds: what a model runs between two runs of the same one."""

    def __init__(self, device: torch.device) -> None:
        self.x = torch.ones(1, 4, 64, device=device)
        self.weight = torch.ones(64, 64, device=device)
        self.ids = torch.zeros(1, 4, dtype=torch.long, device=device)

    def __call__(self) -> None:
        x = F.embedding(self.ids, self.weight)
        x = F.layer_norm(x + self.x, (64,), self.weight[0], self.weight[1])
        q = F.linear(x, self.weight).view(1, 4, 2, 32).transpose(1, 2)
        cos, sin = q.cos(), q.roll(16, -1).neg()
        x = F.scaled_dot_product_attention(q * cos + sin, q, q).transpose(1, 2).reshape(1, 4, 64)
        gate, up = torch.cat((x, x), dim=-1).split(64, dim=-1)
        x = F.linear(F.silu(gate) * up, self.weight, self.weight[0])
        x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt().mul(x).to(torch.bfloat16).argmax(-1)


@torch.inference_mode()
def reading_cost(device: torch.device, calls: int = 60) -> float:
    """Seconds that the clock adds to an operator: a tiny addition with it, less the same without, in turn."""
    x, medley = torch.zeros(1, device=device), Medley(device)
    plain, watched = [], []
    for _ in range(calls):
        medley()
        _synchronise()
        start = time.perf_counter()
        torch.add(x, x)
        _synchronise()
        plain.append(time.perf_counter() - start)
        with OperatorClock() as clock:
            medley()
            torch.add(x, x)
        watched.append(clock.seconds[-1])
    return max(0.0, Latency.of(watched).median - Latency.of(plain).median)
