"""transformers builds a model: in turn, no larger than the weights beside it, and only while somebody waits for it.

While it builds a model, and again while it finishes one, transformers replaces functions of its own for every thread
(tie_weights, initialisers); two that overlap leave the replacements in place for good. These two short steps take
turns; what lies between them, reading the weights, waits for no other model.

A config may say any size, so what is built is counted against what is stored. Some more is right: matrices that will be
shared are made apart, a head may have come without its weights, a fused matrix may be stored for three.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PreTrainedModel

from tfviz.errors import ModelUnavailable, Overtaken
from tfviz.sources.checkpoint_files import StoredTensor

TIMES = 4  # so much more than is stored may be built
SPARE_NUMBERS, SPARE_TENSORS, SPARE_BUFFERS = 1 << 20, 1000, 1 << 26

in_turn = threading.RLock()  # held while transformers' own functions are replaced
_here = threading.local()  # .count: of the model that this thread is loading


@dataclass
class _Count:
    """What may still be made of parameters, of their number, and of buffers."""

    model: str
    stored: int
    unwanted: Callable[[], bool]
    numbers: int
    tensors: int
    buffers: int
    building: bool = False

    def parameter(self, made: Tensor) -> None:
        if self.unwanted():
            raise Overtaken
        if self.building:
            self.numbers -= made.numel()
            self.tensors -= 1
            self.check()

    def buffer(self, made: Tensor) -> None:
        if self.building:
            self.buffers -= made.numel()
            self.check()

    def check(self) -> None:
        if min(self.numbers, self.tensors, self.buffers) < 0:
            raise ModelUnavailable("error.config_oversized", model=self.model, stored=self.stored)


@contextmanager
def bounded(tensors: Collection[StoredTensor], model: str, unwanted: Callable[[], bool]) -> Iterator[None]:
    """Inside it a model of this thread is ended by `ModelUnavailable` when it outgrows what is stored in `tensors`, and
    by `Overtaken` when `unwanted()`."""
    stored = sum(tensor.numbers for tensor in tensors)
    _here.count = _Count(
        model,
        stored,
        unwanted,
        TIMES * stored + SPARE_NUMBERS,
        TIMES * len(tensors) + SPARE_TENSORS,
        TIMES * stored + SPARE_BUFFERS,
    )
    try:
        yield
    finally:
        del _here.count


@contextmanager
def _counted() -> Iterator[None]:
    count: _Count | None = getattr(_here, "count", None)
    if count is None:
        yield
        return
    count.building = True
    try:
        yield
    finally:
        count.building = False


def _parameter_made(module: nn.Module, name: str, made: Tensor | None) -> None:
    if made is not None and hasattr(_here, "count"):
        _here.count.parameter(made)


def _buffer_made(module: nn.Module, name: str, made: Tensor | None) -> None:
    if made is not None and hasattr(_here, "count"):
        _here.count.buffer(made)


_init_context: Any = PreTrainedModel.__dict__["get_init_context"].__func__
_finalize: Any = PreTrainedModel.__dict__["_finalize_model_loading"].__func__


def _init_context_in_turn(cls: type, *args: Any, **options: Any) -> list[AbstractContextManager[Any]]:
    return [in_turn, _counted(), *_init_context(cls, *args, **options)]


def _finalize_in_turn(*args: Any, **options: Any) -> Any:
    with in_turn:
        return _finalize(*args, **options)


PreTrainedModel.get_init_context = classmethod(_init_context_in_turn)  # type: ignore[method-assign, assignment]
PreTrainedModel._finalize_model_loading = staticmethod(_finalize_in_turn)  # type: ignore[method-assign, assignment]
register_module_parameter_registration_hook(_parameter_made)
register_module_buffer_registration_hook(_buffer_made)
