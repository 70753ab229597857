"""The place in a trace that all tabs share: a kind of attention, one of its layers and heads, a query and a key."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tfviz.introspection.trace import Trace

EXACT_CELLS = 160 * 160  # up to here a whole head travels as FP32; beyond, as 8-bit codes with exact rows on demand
FIRST = {"kind": "self", "layer": 13, "head": 8, "query": 8, "key": 1}  # SmolLM2: "it" looks at "animal"


def place(selection: dict[str, Any], trace: "Trace") -> dict[str, Any]:
    """Where a trace opens: at the selection, or the nearest place to it, if it has that kind of attention.

    Else an encoder-decoder opens in the last layer of its cross attention, at the head that copies best or, where
    nothing is copied, tells most; the others open at `FIRST`.
    """
    if has_kind(selection, trace):
        return clamp(selection, trace)
    cross = trace.stacks.get("cross")
    if cross is None or cross.overview is None:
        return clamp({**FIRST, "kind": next(iter(trace.stacks))}, trace)
    layer, head = best_copying(trace) or most_telling(cross.overview)
    key = int(cross.layers[layer].weights(head)[0, 0].argmax()) if layer in cross.layers else 0
    return {"kind": "cross", "layer": layer, "head": head, "query": 0, "key": key}


def has_kind(selection: dict[str, Any], trace: "Trace") -> bool:
    return str(selection.get("kind")) in trace.stacks


def best_copying(trace: "Trace") -> tuple[int, int] | None:
    """(layer, head) of the last cross-attention that, to write a token which is in the source, looks at it most.

    None where the answer has no token of the source in it, there is none, or the map is too large to read at a glance.
    """
    cross, answer = trace.stacks["cross"], trace.answer
    layer = max(cross.layers)
    if answer is None or len(answer.tokens) * len(trace.source_tokens) > EXACT_CELLS:
        return None
    copied = np.array([[token.text == source.text for source in trace.source_tokens] for token in answer.tokens])
    if not copied.any():
        return None
    weights = cross.layers[layer].weights()  # row i is where the decoder looks to write answer.tokens[i]
    return layer, int((weights * copied).sum(axis=(1, 2)).argmax())


def most_telling(overview: np.ndarray) -> tuple[int, int]:
    """(layer, head) of the last layer in which the row says most about the column: their mutual information.

    It is high where each row looks at one place and different rows at different ones, as an alignment does; a head that
    always looks at the same token has none. The last layer is what the output is made from. `overview` is uint8 (layer,
    head, row, column), see thumbnails.py; reading it costs the same however long the text is.
    """
    weights = ((overview[-1].astype(np.float64) - 1).clip(0) / 254) ** 2
    rows = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)
    information = _entropy(rows.mean(axis=1)) - _entropy(rows).mean(axis=-1)
    return len(overview) - 1, int(information.argmax())


def _entropy(p: np.ndarray) -> np.ndarray:
    """Over the last axis, in nats."""
    return -(p * np.log(np.maximum(p, 1e-12))).sum(axis=-1)


def clamp(selection: dict[str, Any], trace: "Trace") -> dict[str, Any]:
    """The same place in this trace, or the nearest."""
    kind = str(selection["kind"])
    stack = trace.stacks[kind]

    def within(name: str, n: int) -> int:
        chosen = selection.get(name)
        return max(0, min(chosen, n - 1)) if type(chosen) is int else 0  # True as an index adds an axis

    return {
        "kind": kind,
        "layer": within("layer", stack.n_layers),
        "head": within("head", stack.n_heads),
        "query": within("query", len(stack.query_tokens)),
        "key": within("key", len(stack.key_tokens)),
    }
