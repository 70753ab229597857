"""The one place where a pass of a model is judged: what is no number is refused in a sentence that says where it began.

Judged are the output, and every attention that somebody watches: its last rows may be lost and the output whole. Then
the pass is made again, module by module, up to the first NaN or infinity: in the weights themselves, in the scores of
an attention, or in what a module gives.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from tfviz.errors import Phrase, UnsupportedHere
from tfviz.inference.precision import PRECISIONS
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call
from tfviz.model.overflow import all_finite, format_name, largest_number, score_dtype, scores_overflow

if TYPE_CHECKING:
    from tfviz.sources.base import LoadedModel

Run = Callable[[], Tensor]


class _Lost(Exception):
    """An attention gave what is no number: the rest of the pass would be worth nothing."""


def finite_output(loaded: "LoadedModel", call: AttentionCall, run: Run, again: Run | None = None) -> Tensor:
    """What `run` gives under `call`: logits or hidden states [..., feature].

    `UnsupportedHere` if they, or an attention that `call` watches, are no numbers. `again` makes the same pass through
    the model's modules, where `run` goes another way.
    """

    def watch(record: AttentionRecord) -> None:
        assert call.watch is not None, "asked for below"
        if _lost(record) is not None:
            raise _Lost
        call.watch(record)

    try:
        with attention_call(call if call.watch is None else replace(call, watch=watch)):
            output = run()
        if all_finite(output.amax(dim=-1) if loaded.has_logits else output):  # a head may rule tokens out by -inf
            return output
    except _Lost:
        pass
    raise where_it_began(loaded, call, again or run)


def where_it_began(loaded: "LoadedModel", call: AttentionCall, run: Run) -> UnsupportedHere:
    """The sentence for a pass that is known to give what is no number."""
    damaged = [(name, ~one.isfinite()) for name, one in _floating(loaded.model) if not all_finite(one)]
    if damaged:
        nan = any(bool(one.isnan().any()) for _, one in _floating(loaded.model))
        advice = "damaged" if nan or loaded.precision == "fp32" else "fp32"  # a cast to FP16 makes infinities only
        n = sum(int(bad.sum()) for _, bad in damaged)
        return _sentence(loaded, "weights", damaged[0][0], advice, n=n)
    trail = _Trail({module: path for path, module in loaded.model.named_modules()})
    handle = register_module_forward_hook(trail.after)
    try:
        with attention_call(replace(call, watch=trail.attended, tap=None)):
            run()
    except _Lost:
        pass
    finally:
        handle.remove()
    widest = loaded.precision == "fp32"
    if trail.scores is None:
        return _sentence(loaded, "values", trail.path, "none" if widest else "fp32")
    advice = "none" if widest else "flash" if call.kernel == "naive" else "fp32"
    limits = {"format": format_name(trail.scores), "limit": largest_number(trail.scores)}
    return _sentence(loaded, "scores", trail.path, advice, **limits)


@dataclass
class _Trail:
    """Follows a pass of this thread and ends it at the first number that is none."""

    paths: dict[nn.Module, str]
    path: str = ""
    scores: torch.dtype | None = None  # an attention's scores overflowed in this format
    thread: int = 0

    def __post_init__(self) -> None:
        self.thread = threading.get_ident()

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if module not in self.paths or threading.get_ident() != self.thread:
            return
        gave = next((one for one in _tensors(output) if one.is_floating_point()), None)
        if gave is not None and not all_finite(gave):
            self.path = self.paths[module]
            raise _Lost

    def attended(self, record: AttentionRecord) -> None:
        lost = _lost(record)
        if lost is not None:
            self.path = self.paths.get(record.module, "")
            self.scores = score_dtype(record.kernel, record.query.dtype) if lost == "scores" else None
            raise _Lost


def _lost(record: AttentionRecord) -> str | None:
    """ "values" or "scores" where an attention is no number; None where it is one."""
    if not all(all_finite(one) for one in (record.query, record.key, record.value)):
        return "values"
    dtype = score_dtype(record.kernel, record.query.dtype)
    if scores_overflow(record.query, record.key, record.mask, record.rule, dtype):
        return "scores"
    return None if record.output is None or all_finite(record.output) else "values"


def _sentence(loaded: "LoadedModel", what: str, path: str, advice: str, **values: object) -> UnsupportedHere:
    layer = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)  # blocks stand numbered in their list
    place = Phrase("error.not_finite.part", {"path": path}) if path else Phrase("error.not_finite.output", {})
    if layer is not None:
        place = Phrase("error.not_finite.layer", {"layer": int(layer[1]), "path": path})
    return UnsupportedHere(
        f"error.not_finite.{what}",
        model=loaded.label,
        precision=PRECISIONS[loaded.precision].label,
        place=place,
        advice=Phrase(f"error.not_finite.advice.{advice}", {}),
        **values,
    )


def _floating(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = (*model.named_parameters(), *model.named_buffers())
    return [(name, one) for name, one in named if one.is_floating_point()]


def _tensors(output: Any) -> list[Tensor]:
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else [output]
    return [one for one in values if isinstance(one, Tensor)]
