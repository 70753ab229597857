"""Attention tab: who looks at whom. All heads of all layers at a glance, one of them exactly, and what was checked.

Above it, for an encoder-decoder, what the decoder answers; each row of its maps belongs to one token of that answer.
"""

import base64
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.ui import live
from tfviz.ui.components import answer
from tfviz.ui.components.altered import altered_line
from tfviz.ui.components.attention_view import attention_view, view_labels
from tfviz.ui.components.speed_strip import precision_label
from tfviz.ui.context import AppContext
from tfviz.ui.i18n import Translator, milliseconds, significant
from tfviz.ui.selection import EXACT_CELLS, has_kind, place
from tfviz.ui.tab import Tab

if TYPE_CHECKING:
    from tfviz.introspection.trace import AttentionStack, Trace
    from tfviz.introspection.workbench import Workbench
    from tfviz.sources.tokens import Token

INLINE_BYTES = 96 * 1024  # thumbnails up to here travel with the trace, larger ones are asked for
TOLERANCE = {
    "FP32": 1e-4,
    "FP16": 2e-2,
    "BF16": 5e-2,
}  # of flash against naive, for values up to 1, by the scores' format
ROWS = {
    "FP32": 1e-4,
    "FP16": 2**-10,
    "BF16": 2**-7,
}  # of row sums: half formats round each weight by half a step, 2^-10


def draw(trace_id: str, trace: "Trace", selection: dict[str, Any], t: Translator) -> dict[str, Any]:
    """The view's value: everything small about a trace, with the head that will be shown first."""
    source, target = trace.source_tokens, trace.target_tokens
    title = t("attention.source") if target else t("attention.tokens")
    lists = {"source": _token_list(title, source, t, None if target else trace.n_prompt)}
    if target:
        title = t("attention.target_written") if trace.target_written else t("attention.target")
        lists["target"] = _token_list(title, target, t, trace.n_prompt)
    select = place(selection, trace)
    return {
        "trace": trace_id,
        "kinds": [_kind(stack, t) for stack in trace.stacks.values()],
        "token_lists": lists,
        "altered": altered_line(trace.altered, trace.model_label, t),
        "select": select,
        "first": draw_head(trace, select["kind"], select["layer"], select["head"], t),
    }


def draw_head(trace: "Trace", kind: str, layer: int, head: int, t: Translator) -> dict[str, Any]:
    """One head exactly (or as 8-bit codes when it is large), and the badges computed from the arrays sent."""
    import time

    from tfviz.introspection.thumbnails import encode_weights

    stack = trace.stacks[kind]
    attention = stack.layers[layer]
    start = time.perf_counter()
    weights = attention.weights(head)[0]
    seconds = time.perf_counter() - start
    blocked = _of_head(attention.blocked, head)
    reply: dict[str, Any] = {"n_query": weights.shape[0], "n_key": weights.shape[1]}
    if weights.size <= EXACT_CELLS:
        reply |= {"format": "f32", "weights": _base64(np.where(blocked, np.float32(np.nan), weights))}
    else:
        import torch

        codes = encode_weights(torch.from_numpy(weights), torch.tensor(blocked)).numpy()
        triangle = stack.causal and codes.shape[0] == codes.shape[1]  # row i has i + 1 cells
        sent = codes[np.tri(len(codes), dtype=bool)] if triangle else codes
        reply |= {"format": "u8", "lower": triangle, "weights": _base64(sent)}
    badges = _badges(trace, stack, layer, head, weights, blocked, seconds, t)
    return reply | {"badges": badges, "caption": _caption(trace, stack, t)}


def draw_row(trace: "Trace", kind: str, layer: int, head: int, query: int) -> dict[str, Any]:
    """One row of a head in FP32, blocked cells NaN."""
    attention = trace.stacks[kind].layers[layer]
    blocked = _of_head(attention.blocked, head)[query]
    return {"weights": _base64(np.where(blocked, np.float32(np.nan), attention.weights(head)[0, query]))}


def draw_grown(bench: "Workbench", request: Any, t: Translator) -> dict[str, Any]:
    """The view's value for a sentence with the tokens that a run of the Generate tab wrote after it."""
    from tfviz.introspection.workbench import Gone

    asked = request if isinstance(request, dict) else {}
    origin, selection = str(asked.get("trace")), asked.get("place")
    try:
        trace_id, trace = live.grown(bench, origin, str(asked.get("run")))
    except Gone:
        return {"gone": True}
    value = draw(trace_id, trace, selection if isinstance(selection, dict) else {}, t)
    n_read = len(trace.target_tokens or trace.source_tokens)
    return {"value": value | {"origin": origin, "written": n_read - (trace.n_prompt or n_read)}}


def build(ctx: AppContext) -> None:
    """The canvas component; its matrices come through server functions, without the queue."""
    t = ctx.t

    def head(request: Any) -> dict[str, Any]:
        trace, place = _look_up(ctx, request)
        return {"gone": True} if trace is None or place is None else draw_head(trace, *place, t)

    def row(request: Any) -> dict[str, Any]:
        trace, place = _look_up(ctx, request)
        query = _whole(request, "query")
        if trace is None or place is None or not 0 <= query < len(trace.stacks[place[0]].query_tokens):
            return {"gone": True}
        return draw_row(trace, *place, query)

    def overview(request: Any) -> dict[str, Any]:
        trace, _ = _look_up(ctx, request)
        stack = None if trace is None else trace.stacks.get(str(request.get("kind")))
        return {"gone": True} if stack is None or stack.overview is None else _thumbs(stack.overview)

    def grown(request: Any) -> dict[str, Any]:
        return draw_grown(ctx.workbench, request, t)

    panel = answer.answer_panel(answer.answer_labels(t.language))
    ctx.on_trace(panel, lambda trace_id, trace, selection: answer.draw(trace_id, trace, t))
    view = attention_view([head, row, overview, grown], view_labels(t.language))
    ctx.on_trace(view, lambda trace_id, trace, selection: draw(trace_id, trace, selection, t))
    ctx.on_trace(
        ctx.selection,
        lambda trace_id, trace, selection: gr.skip() if has_kind(selection, trace) else place(selection, trace),
    )
    ctx.attention_view = view


def _look_up(ctx: AppContext, request: Any) -> "tuple[Trace | None, tuple[str, int, int] | None]":
    """The trace of a request and the (kind, layer, head) it asks for; None for whatever there is none of.

    Anybody can send a request, so nothing about its form is taken for granted.
    """
    if not isinstance(request, dict):
        return None, None
    trace = ctx.workbench.find(str(request.get("trace")))
    stack = None if trace is None else trace.stacks.get(str(request.get("kind")))
    layer, head = _whole(request, "layer"), _whole(request, "head")
    if stack is None or layer not in stack.layers or not 0 <= head < stack.n_heads:
        return trace, None
    return trace, (stack.kind, layer, head)


def _whole(request: Any, name: str) -> int:
    """A whole number out of a request; -1 for anything else."""
    value = request.get(name) if isinstance(request, dict) else None
    return value if isinstance(value, int) else -1


def _kind(stack: "AttentionStack", t: Translator) -> dict[str, Any]:
    assert stack.overview is not None, "the page always asks for thumbnails"
    small = stack.overview.nbytes <= INLINE_BYTES
    return {
        "key": stack.kind,
        "label": t(f"attention.kind.{stack.kind}"),
        "n_layers": stack.n_layers,
        "n_heads": stack.n_heads,
        "n_kv_heads": stack.n_kv_heads,
        "n_query": len(stack.query_tokens),
        "n_key": len(stack.key_tokens),
        "query_list": "target" if stack.kind in {"decoder", "cross"} else "source",
        "key_list": "target" if stack.kind == "decoder" else "source",
        "causal": stack.causal,
        "thumb": list(stack.overview.shape[-2:]),
        "thumbs": _base64(stack.overview) if small else None,
    }


def _thumbs(overview: np.ndarray) -> dict[str, Any]:
    return {"thumb": list(overview.shape[-2:]), "thumbs": _base64(overview)}


def _token_list(title: str, tokens: "tuple[Token, ...]", t: Translator, typed: int | None = None) -> dict[str, Any]:
    from tfviz.sources.tokens import is_right_to_left

    return {
        "title": title,
        "tokens": [
            {
                "text": token.text,
                "title": t("attention.token", raw=token.raw, id=token.id, position=position),
                "special": token.special,
                "typed": token.typed,
                "written": typed is not None and position >= typed,
                "joined": token.joined,
                "piece": token.piece,
                "rtl": is_right_to_left(token.text),
            }
            for position, token in enumerate(tokens)
        ],
    }


def _badges(
    trace: "Trace",
    stack: "AttentionStack",
    layer: int,
    head: int,
    weights: np.ndarray,
    blocked: np.ndarray,
    seconds: float,
    t: Translator,
) -> list[dict[str, str]]:
    """What was checked, on the very arrays that are sent."""
    from tfviz.model.overflow import format_name

    attention, kept = stack.layers[layer], format_name(stack.layers[layer].score_dtype)
    nothing_allowed = blocked.all(axis=1)
    off = float(np.abs(weights.sum(axis=1) - ~nothing_allowed).max())
    badges = [_badge(off <= ROWS[kept], t("badge.rows", off=significant(off)), t("badge.rows.title"))]
    if blocked.any():
        leak = float(weights[blocked].max())
        key = "badge.future" if stack.causal else "badge.blocked"
        text = t(key, n=int(blocked.sum()), max=significant(leak))
        badges.append(_badge(leak == 0.0, text, t("badge.blocked.title")))
    if nothing_allowed.any():
        badges.append(_note(t("badge.empty_rows", n=int(nothing_allowed.sum())), t("badge.empty_rows.title")))
    if attention.softcap is None:
        apart, largest = attention.kernel_difference(head, weights), float(np.abs(attention.value).max())
        holds = apart <= TOLERANCE[kept] * max(1.0, largest)
        badges.append(_badge(holds, t("badge.kernels", apart=significant(apart)), t("badge.kernels.title")))
    note = t(f"badge.origin.{trace.kernel}", layer=layer, took=milliseconds(seconds))
    title = t("badge.origin.title")
    if trace.precision != "fp32":
        key = "badge.origin.rounded" if kept == "FP32" else "badge.origin.own"
        title = t(key, precision=precision_label(trace.precision), format=kept)
    badges.append(_note(note, title))
    return badges


def _badge(holds: bool, text: str, title: str) -> dict[str, str]:
    return {"state": "ok" if holds else "warn", "text": text, "title": title}


def _note(text: str, title: str) -> dict[str, str]:
    return {"state": "note", "text": text, "title": title}


def _caption(trace: "Trace", stack: "AttentionStack", t: Translator) -> str:
    """One sentence on how to read this kind of map."""
    key = f"attention.caption.{stack.kind}" if stack.kind != "self" else f"attention.caption.{trace.family}"
    caption = t(key)
    return caption + " " + t("attention.caption.grouped") if stack.n_kv_heads != stack.n_heads else caption


def _of_head(array: np.ndarray, head: int) -> np.ndarray:
    return array[head if len(array) > 1 else 0]


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).data).decode("ascii")


TAB = Tab("attention", "tab.attention", frozenset({"self", "encoder", "decoder", "cross"}), build)
