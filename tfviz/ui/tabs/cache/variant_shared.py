"""What the variants of a cache share: findings that stay with the trace, layers in order, errors as percent."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import significant

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.trace import AttentionStack, LayerAttention


def kept(scene: Scene, key: Any, job: Callable[..., Any], *args: Any) -> Any:
    """`job(*args)` of the trace's arrays, once; it stays with the trace."""
    found = scene.bench.recall(scene.trace_id, key)
    if found is None:
        found = scene.compute(job, *args)
        scene.bench.remember(scene.trace_id, key, found)
    return found


def layers_of(stack: "AttentionStack") -> "list[LayerAttention]":
    return [stack.layers[i] for i in sorted(stack.layers)]


def percent_of(part: float) -> str:
    """0.0123 -> 1.23 %."""
    return f"{significant(100 * part)} %"
