"""Step by step, the flow: one head's real numbers from q and k to the vector that attention gives for a token.

The stages are arrays of tfviz.introspection.steps; assets/js/views/flow.js lays them side by side and plays them.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfviz.errors import UnsupportedHere
from tfviz.ui.components.picture import Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.step.checks import badges, notes
from tfviz.ui.tabs.step.shown import KEYS_SHOWN, Shown, look
from tfviz.ui.tabs.step.stages import stages

WHOLE_BYTES = 100_000  # of text that all heads of all rows may take; beyond, those of the chosen row are sent alone
FORMULAS = (
    r"s_j = \frac{q \cdot k_j}{\sqrt{d_k}}, \qquad \alpha_j = \frac{\exp s_j}{\sum_l \exp s_l}",
    r"\text{head} = \sum_j \alpha_j v_j, \qquad o = [\,\text{head}_0 \cdots \text{head}_{h-1}]\, W^O",
)
WORDS = (
    "player back play pause next up down speed query grid sum total head output others times below above ink"
).split()


def draw(scene: Scene) -> Picture:
    from tfviz.introspection import anatomy, steps

    assert scene.trace is not None
    place, trace, seen, missing = scene.place, scene.trace, None, ""
    try:
        seen = scene.examine(anatomy.examine).attentions[place["kind"], place["layer"]]
    except UnsupportedHere as error:
        missing = scene.t.error(error)
    again = seen is not None and trace.precision != "fp32" and trace.kernel != "naive"
    stack = (scene.examine(steps.naive_pass) if again else trace).stacks[place["kind"]]
    shown_id = "/".join(str(part) for part in (scene.trace_id, place["kind"], place["layer"], place["head"]))
    return picture(look(stack, seen, place, trace.precision, shown_id, missing, again), scene.t)


def picture(shown: Shown, t: Translator) -> Picture:
    """The flow, its checks and what has to be said beside it."""
    from tfviz.introspection.steps import largest_keys

    at = shown.steps.rows.index(shown.row)
    key_at = largest_keys(shown.steps.weights[at], KEYS_SHOWN)
    data = {
        "id": shown.id,
        "queries": list(shown.queries),
        "keys": [shown.keys[i] for i in key_at],
        "key_at": key_at,
        "rest": len(shown.keys) - len(key_at),
        "rows": list(shown.steps.rows),
        "row": shown.row,
        "key": shown.key,
        "stages": stages(shown, t),
        "head": shown.head,
        "heads": shown.n_heads,
        "sharing": list(shown.sharing) if shown.n_kv_heads < shown.n_heads else [],
        "value_dim": shown.steps.value.shape[1],
        "words": _words(shown, t),
        **_arrays(shown, key_at),
    }
    return Picture(
        [Panel(view="flow", data=data, wide=True, note=t("step.flow.note"))], badges(shown, t), notes(shown, t)
    )


def _words(shown: Shown, t: Translator) -> dict[str, str]:
    words = {word: t(f"step.flow.{word}") for word in WORDS} | {"rest": t("step.flow.rest", n="{n}")}
    if shown.steps.blocked.any():
        words["blocked"] = t("step.flow.blocked")
    if shown.n_kv_heads < shown.n_heads:
        group = shown.head * shown.n_kv_heads // shown.n_heads
        words["shared"] = t("step.flow.shared", n=len(shown.sharing), group=group, groups=shown.n_kv_heads)
    if shown.whole is not None:
        words["projection"] = f"{shown.whole.joined.shape[1]} × {shown.whole.output.shape[1]}"
    return words


def _arrays(shown: Shown, key_at: Sequence[int]) -> dict[str, Any]:
    """Every number on the screen, of the keys that are shown; sums are over all keys."""
    steps, hidden = shown.steps, np.setdiff1d(np.arange(len(shown.keys)), key_at)
    whole, where = shown.whole, [steps.rows.index(shown.row)]
    arrays = {"query": steps.query, "key": steps.key[key_at], "value": steps.value[key_at], "sum": steps.output}
    for name in ("raw", "scaled", "capped", "bias", "scores", "weights"):
        if getattr(steps, name) is not None:
            arrays[name] = getattr(steps, name)[:, key_at]
    if steps.blocked.any():
        arrays["blocked"] = steps.blocked[:, key_at]
    if len(hidden):
        arrays["rest"] = steps.weights[:, hidden] @ steps.value[hidden]
        arrays["rest_weight"] = steps.weights[:, hidden].sum(axis=1, keepdims=True)
    if shown.before is not None:
        arrays["query_before"], arrays["key_before"] = shown.before[0], shown.before[1][key_at]
    if whole is not None:
        if (whole.joined.size + whole.output.size) * 16 / 3 <= WHOLE_BYTES:
            where = list(range(len(steps.rows)))
        arrays["joined"], arrays["output"] = whole.joined[where], whole.output[where]
    packed = {name: pack(array) for name, array in arrays.items()}
    return {"arrays": packed, "whole": [steps.rows[i] for i in where] if whole is not None else []}


def pack(array: np.ndarray) -> dict[str, Any]:
    """float32, row after row, as base64."""
    data = base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")
    return {"shape": list(array.shape), "data": data}


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.steps import all_heads, head_steps, softmax

    return head_steps, softmax, all_heads


SECTION = Section(
    key="step.flow",
    draw=draw,
    formulas=FORMULAS,
    selects=("kind", "layer", "head", "query"),
    tries=(
        Try("first", place={"query": 0}),
        Try("twice", sentence="the cat saw the other cat near the door"),
        Try("last", place={"layer": 99}),
    ),
    code=code,
)
