"""What the variants of a cache share: findings that stay with the trace, layers in order, percent, one and many."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator, significant

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


def counted(t: Translator, key: str, n: int | None, **values: object) -> str:
    """The sentence `key` about `n` things; `key`.one where it is a single one. None: any number of them."""
    return t(f"{key}.one" if n == 1 else key, n="" if n is None else f"{n:,}", **values)


def percent_of(part: float) -> str:
    """0.0123 -> 1.23 %."""
    return f"{significant(100 * part)} %"
