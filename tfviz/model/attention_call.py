"""What travels with one forward call: which attention kernel, and who watches. Never stored on a model.

Models of ours and transformers' models (through the bridge of tfviz.sources) both read it.

A resident model serves many visitors; each call carries its own switches in a context variable, which every thread has
for itself, so two visitors with different switches never see each other's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tfviz.model.attention import ATTENTION_KERNELS, ScoreRule
from tfviz.model.overflow import keep_nan
from tfviz.registry import choose


@dataclass(frozen=True)
class AttentionRecord:
    """One attention as it happened: everything that its weights can be computed from again."""

    module: nn.Module  # who computed it; a shared layer (ALBERT) records once a call
    query: Tensor  # (batch, head, query, dim), positions already applied
    key: Tensor  # (batch, kv_head, key, dim)
    value: Tensor  # (batch, kv_head, key, value_dim)
    mask: Tensor | None  # True = blocked
    rule: ScoreRule
    output: Tensor | None = None  # (batch, head, query, value_dim), as the kernel gave it; None: not run
    kernel: str = "naive"  # which one ran


@dataclass(frozen=True)
class AttentionCall:
    """The switches of one forward call."""

    kernel: str = "flash"
    watch: Callable[[AttentionRecord], None] | None = None
    tap: Callable[[nn.Module, str, Tensor], None] | None = None  # sees what our modules `report`
    turned: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        choose(ATTENTION_KERNELS, self.kernel, "kernel")

    def blocked(self, allowed: Tensor) -> Tensor:
        """The mask turned over, once for all layers that share it (and so one tensor for whoever watches)."""
        if id(allowed) not in self.turned:
            self.turned[id(allowed)] = allowed, ~allowed  # kept together, so that the id is not used again
        return self.turned[id(allowed)][1]


_current: ContextVar[AttentionCall | None] = ContextVar("tfviz_attention_call", default=None)


def current_call() -> AttentionCall:
    return _current.get() or AttentionCall()


@contextmanager
def attention_call(call: AttentionCall) -> Iterator[None]:
    """Every attention computed inside, in this thread, follows `call`."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    rule: ScoreRule,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """`module`'s attention by the kernel of the call, shown to whoever watches: (output, weights or None).

    Nothing is refused here: NaN goes on to where a whole pass is judged, which can name the layer (sources.finite).
    """
    call = current_call()
    output, weights = ATTENTION_KERNELS[call.kernel](query, key, value, mask, dropout_p, rule)
    if weights is None and torch.is_inference_mode_enabled():
        keep_nan(output, query)
    if call.watch is not None:
        call.watch(AttentionRecord(module, query, key, value, mask, rule, output, call.kernel))
    return output, weights


def report(module: nn.Module, name: str, value: Tensor) -> None:
    """Shows `value` to whoever taps this call, as `name` of `module`; nothing is kept otherwise."""
    call = _current.get()
    if call is not None and call.tap is not None:
        call.tap(module, name, value)
