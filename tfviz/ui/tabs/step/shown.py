"""What the flow is drawn from: the arrays of one head at one place, and those of all heads that leave it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.anatomy import AttentionSeen
    from tfviz.introspection.steps import AllHeads, HeadSteps
    from tfviz.introspection.trace import AttentionStack

KEYS_SHOWN = 64


@dataclass(frozen=True)
class Shown:
    """Everything that the picture is drawn from."""

    id: str
    steps: "HeadSteps"
    whole: "AllHeads | None"  # None where W_O cannot be read
    before: tuple[np.ndarray, np.ndarray] | None  # q of `steps.rows` and all k before positions; None: unknown or equal
    change: str  # what was done to them: see steps.what_changed
    queries: Sequence[str]
    keys: Sequence[str]
    row: int
    key: int
    head: int
    n_heads: int
    n_kv_heads: int
    sharing: Sequence[int]  # heads that read the same k and v
    precision: str
    missing: str = ""  # why `whole` is None
    again: bool = False  # the arrays are of a naive pass of their own


def look(
    stack: "AttentionStack",
    seen: "AttentionSeen | None",
    place: Mapping[str, Any],
    precision: str = "fp32",
    shown_id: str = "",
    missing: str = "",
    again: bool = False,
) -> Shown:
    """The arrays of this place: all rows of a short text, else the chosen one."""
    from tfviz.introspection import steps as step

    layer, head, row = stack.layers[place["layer"]], place["head"], place["query"]
    n_query, n_key = len(stack.query_tokens), len(stack.key_tokens)
    rows = list(range(n_query)) if max(n_query, n_key) <= KEYS_SHOWN else [row]
    before, change = None, "same"
    if seen is not None:
        query = step.split(seen.query, len(layer.query), head)[rows]
        key = step.split(seen.key, len(layer.key), step.kv_head(layer, head))
        changes = {
            step.what_changed(query, layer.query[head, rows]),
            step.what_changed(key, layer.key[step.kv_head(layer, head)]),
        }
        change = next((one for one in ("changed", "rotated", "scaled") if one in changes), "same")
        before = (query, key) if change != "same" else None
    readable = seen is not None and seen.out_weight is not None
    return Shown(
        id=shown_id,
        steps=step.head_steps(layer, head, rows),
        whole=step.all_heads(layer, seen, rows) if readable else None,  # type: ignore[arg-type]
        before=before,
        change=change,
        queries=[token.label for token in stack.query_tokens],
        keys=[token.label for token in stack.key_tokens],
        row=row,
        key=place["key"],
        head=head,
        n_heads=stack.n_heads,
        n_kv_heads=stack.n_kv_heads,
        sharing=step.sharing(layer, head),
        precision=precision,
        missing=missing,
        again=again,
    )
