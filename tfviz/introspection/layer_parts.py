"""The steps of one layer by their duty: attention, feed-forward, norms; and what a step computes, found by trying.

Which activation a network has, and whether a norm is LayerNorm or RMSNorm, is decided by which formula gives the
model's own numbers: class names differ from model to model (T5LayerNorm is an RMSNorm), numbers do not.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tfviz.introspection.layer_calls import Attended, LayerCall, Step, is_linear, is_norm
from tfviz.introspection.projections import Projections

Array = np.ndarray
Rows = Float[Array, "pos features"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: F.relu(x).square(),
    "tanh": torch.tanh,
}
GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}  # arXiv 2002.05202
TRIED = 4  # positions on which a formula is tried


@dataclass(frozen=True, eq=False)
class Parts:
    """One layer's steps, sorted."""

    call: LayerCall
    attentions: Mapping[Attended, Projections]

    @property
    def width(self) -> int:
        """d_model"""
        assert self.call.whole.after is not None
        return self.call.whole.after.shape[1]

    @cached_property
    def feed_forward(self) -> list[Step]:
        """Linear steps that belong to no attention."""
        taken = set(self._attention_modules())
        return [one for one in self.call.of_role("linear") if one.module not in taken]

    @cached_property
    def down(self) -> Step | None:
        """The last of them, if it gives rows of the stream."""
        last = self.feed_forward[-1] if self.feed_forward else None
        return last if last is not None and last.after is not None and last.after.shape[1] == self.width else None

    @cached_property
    def norms(self) -> list[Step]:
        """Norms of the stream or of a branch; not those inside an attention."""
        return [one for one in self.call.of_role("norm") if not self._inside_attention(one) and self._fits(one)]

    @cached_property
    def blocks(self) -> list[Step]:
        return [one for one in self.call.of_role("block") if self._fits(one)]

    def out(self, attention: int) -> Step | None:
        """W_O of the first attention of the layer, or of the second (cross)."""
        found = [*self.attentions.values()]
        return found[attention].out if attention < len(found) else None

    def parameters(self) -> dict[str, int]:
        """Weights by duty, an INT8 table counted as the matrix that it stands for."""
        counts = {"attention": 0, "cross": 0, "feed_forward": 0, "norm": 0}
        places: dict[Any, str] = {}
        for duty, (attended, found) in zip(("attention", "cross"), self.attentions.items(), strict=False):
            places |= {one: duty for one in (*attended.module.modules(), *([found.out.module] if found.out else ()))}
        for module in self.call.whole.module.modules():
            duty = "norm" if is_norm(module) else places.get(module, "feed_forward")
            counts[duty] += _own_weights(module)
        return counts

    def _attention_modules(self) -> Iterator[Any]:
        for attended, found in self.attentions.items():
            first, last = call_range(self.call, attended, found)
            yield from (one.module for one in self.call.steps[first:last] if isinstance(one, Step))

    def _inside_attention(self, norm: Step) -> bool:
        at = self.call.steps.index(norm)
        ranges = (call_range(self.call, attended, found) for attended, found in self.attentions.items())
        return any(first <= at < last for first, last in ranges)

    def _fits(self, step: Step) -> bool:
        whole = self.call.whole.after
        assert whole is not None
        return step.after is not None and step.after.shape == whole.shape


def call_range(call: LayerCall, attended: Attended, found: Projections) -> tuple[int, int]:
    """Where in the layer's steps an attention begins (its first projection) and ends (behind W_O)."""
    at = call.steps.index(attended)
    first = call.steps.index(found.linears[0]) if found.linears else at
    return first, 1 + (call.steps.index(found.out) if found.out is not None else at)


def _own_weights(module: Any) -> int:
    if is_linear(module):
        bias = getattr(module, "bias", None)
        return module.weight.numel() + (0 if bias is None else bias.numel())
    return sum(parameter.numel() for parameter in module.parameters(recurse=False))


def find_activation(parts: Parts, hidden: Rows | None) -> tuple[Rows | None, Rows | None, str]:
    """(up, through, name of f) such that hidden = f(up), or f(up) * through in a gated network."""
    if hidden is None:
        return None, None, ""
    outputs = list(_of_width(parts, hidden.shape[1]))
    tried = (one for up in outputs for one in _bent(up, [other for other in outputs if other is not up]))
    errors = [(_distance(made, hidden[:TRIED]), up, through, name) for made, up, through, name in tried]
    if not errors:
        return None, None, ""
    error, up, through, name = min(errors, key=lambda one: one[0])
    return (up, through, name) if error <= _tolerance(parts.call) else (None, None, "")


def _bent(up: Rows, others: list[Rows]) -> Iterator[tuple[Rows, Rows, Rows | None, str]]:
    """Every activation of `up` on a few positions, alone and as the gate of another output."""
    few = torch.from_numpy(np.ascontiguousarray(up[:TRIED]))
    for name, f in ACTIVATIONS.items():
        bent = f(few).numpy()
        yield bent, up, None, name
        if name in GATED:
            yield from ((bent * other[:TRIED], up, other, GATED[name]) for other in others)


def _distance(made: Rows, target: Rows) -> float:
    """|made - target| / |target|, the mean over positions: one position with huge values does not hide the others."""
    return float((np.linalg.norm(made - target, axis=1) / np.maximum(np.linalg.norm(target, axis=1), 1e-30)).mean())


def _of_width(parts: Parts, width: int) -> Iterator[Rows]:
    """Outputs of the layer's widening steps, fused pairs (Phi-3) cut in two."""
    for step in parts.feed_forward:
        if step is parts.down or step.after is None:
            continue
        if step.after.shape[1] == width:
            yield step.after
        elif step.after.shape[1] == 2 * width:
            yield from np.split(step.after, 2, axis=1)


def find_norm(call: LayerCall, step: Step) -> tuple[str, str, Rows, Rows, Array | None, Array | None, float]:
    """The fields of a `NormSeen`: name, kind, before, after, gain, bias, eps."""
    module: Any = step.module
    names = {one: name for name, one in call.whole.module.named_modules()}
    spelt = [key for key in ("eps", "variance_epsilon", "epsilon") if hasattr(module, key)]
    eps = float(getattr(module, spelt[0])) if spelt else 0.0
    weight, bias = (_vector(getattr(module, key, None)) for key in ("weight", "bias"))
    before, after = step.before, step.after
    assert before is not None and after is not None
    made = _normed(before[:TRIED], weight, bias, eps)
    tried = [(_distance(rows, after[:TRIED]), kind, gain) for rows, kind, gain in made]
    error, kind, gain = min(tried, key=lambda one: one[0])
    if error > _tolerance(call):
        kind, gain = type(module).__name__, weight
    return names[module], kind, before, after, gain, bias, eps


def _normed(
    before: Rows, weight: Array | None, bias: Array | None, eps: float
) -> Iterator[tuple[Rows, str, Array | None]]:
    """LayerNorm and RMSNorm of these rows, with each gain that the weight may stand for."""
    for kind, rows in (("layer", before - before.mean(axis=1, keepdims=True)), ("rms", before)):
        normal = rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + max(eps, 1e-30))
        for gain in [None] if weight is None else [weight, 1 + weight]:  # Gemma's gain is 1 + weight
            yield normal * (1 if gain is None else gain) + (0 if bias is None else bias), kind, gain


def _vector(value: Tensor | None) -> Array | None:
    return None if value is None else value.detach().float().cpu().numpy()


def _tolerance(call: LayerCall) -> float:
    """Of one operation, relative: 1e-4 in FP32, 3e-2 in BF16."""
    return max(1e-4, 4 * call.eps)
