"""What travels with one forward call: which attention kernel, and who watches. Never stored on a model.

A resident model serves many visitors; each call carries its own switches in a context variable, which every thread has
for itself, so two visitors with different switches never see each other's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor, nn

from tfviz.model.attention import ATTENTION_KERNELS, ScoreRule
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


@dataclass(frozen=True)
class AttentionCall:
    """The switches of one forward call."""

    kernel: str = "flash"
    watch: Callable[[AttentionRecord], None] | None = None

    def __post_init__(self) -> None:
        choose(ATTENTION_KERNELS, self.kernel, "kernel")


_current: ContextVar[AttentionCall] = ContextVar("tfviz_attention_call", default=AttentionCall())


def current_call() -> AttentionCall:
    return _current.get()


@contextmanager
def attention_call(call: AttentionCall) -> Iterator[None]:
    """Every attention computed inside, in this thread, follows `call`."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
