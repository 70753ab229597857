"""KV cache, the steps: what every step of a real generation computes, reads and keeps, beside the same step without.

The steps are those of tfviz.introspection.cache_trace; assets/js/views/cache.js keeps all of them and plays them.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.components.speed_strip import precision_label
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.cache_trace import CacheRun, CacheStep, Counted, HeadTrace

KEY = "cache.steps"  # under which a run is kept with its trace
CHOICES = (16, 32, 64)  # new tokens
SHOWN = 96  # positions of the prompt that are drawn; those before them are one column
FEW = 4  # entries of a vector that are told as numbers
COUNTED = ("fp32", "fp16", "bf16")  # precisions whose matrix products torch counts
FIELDS = ("n", "i", "x", "token", "last", "layer", "head", "group", "with", "without")  # that the drawing fills in
FORMULAS = (
    r"\text{bytes} = \underbrace{2}_{K,\,V} \times \text{layers} \times h_{kv} \times d_{head} \times b \times n",
)
WORDS = (
    "player back play pause next speed slider more grid computed cache cross attention position layer kv head "
    "prefill prefill.one decode ended step new read again.cell evicted leaving to_come memory same same.work "
    "work time with without less faster slower few once median token measured sliding projections scores "
    "values feed_forward output tensors tensor shape first first.row strip strip.rows q k v K V K_cross V_cross "
    "k_cross v_cross axes row row_kv rest cross.once below above"
).split()


def draw(scene: Scene, ask: Mapping[str, Any]) -> Iterator[Picture]:
    from tfviz.introspection.cache_trace import CacheRun, Opening, cache_steps

    assert scene.trace is not None
    wanted = ask.get("steps") if ask.get("steps") in CHOICES else CHOICES[0]
    assert isinstance(wanted, int)
    kept = scene.bench.recall(scene.trace_id, KEY)
    run: CacheRun | None = kept if isinstance(kept, CacheRun) else None
    steps = list(run.steps[:wanted]) if run is not None else []
    if run is None or not _complete(run, wanted):
        known = tuple(step.token.id for step in steps)
        job = partial(cache_steps, kernel=scene.trace.kernel, steps=wanted, known=known)
        opening = None if run is None else run.opening
        for found in scene.stream(job):
            if isinstance(found, Opening):
                opening = found
                continue
            assert opening is not None
            steps.append(found)
            run = CacheRun(opening, tuple(steps))
            scene.bench.remember(scene.trace_id, KEY, run)
            if len(steps) < wanted and not found.ended:
                yield _shown(scene, run, wanted, part=len(steps) / wanted)
    if run is not None and run.steps and not scene.stop():
        yield _shown(scene, run.first(wanted), wanted)


def _complete(run: "CacheRun", wanted: int) -> bool:
    room = run.opening.room
    return len(run.steps) >= (wanted if room is None else min(wanted, room)) or run.steps[-1].ended


def _shown(scene: Scene, run: "CacheRun", wanted: int, part: float | None = None) -> Picture:
    from tfviz.introspection.cache_trace import counted_step, head_trace

    assert scene.trace is not None
    place, t, counted = scene.place, scene.t, None
    if part is None and scene.trace.precision in COUNTED and not run.opening.shape.uncounted:
        counted = scene.examine(counted_step)
    kind = place["kind"] if place["kind"] == "cross" else run.opening.own
    shapes = run.opening.shape.cross if kind == "cross" else run.opening.shape.own
    layer = min(int(place["layer"]), len(shapes) - 1)
    head = head_trace(run, kind, layer, min(int(place["head"]), shapes[layer].heads - 1))
    notes = [t("cache.steps.note.encoder")] if place["kind"] == "encoder" else []
    return picture(run, head, wanted, t, scene.trace_id, scene.trace.precision, notes, part, counted)


def picture(
    run: "CacheRun",
    head: "HeadTrace",
    wanted: int,
    t: Translator,
    run_id: str = "",
    precision: str = "fp32",
    notes: Sequence[str] = (),
    part: float | None = None,
    counted: "Counted | None" = None,
) -> Picture:
    """The whole run as one drawing. While it grows (`part`), without the vectors' colours."""
    data = {"id": run_id, "wanted": wanted, "choices": list(CHOICES), "words": _words(t), **_run(run)}
    data |= _head(run, head, vectors=part is None)
    data["done"] = part is None
    said = [*notes, *(_notes(run, wanted, t) if part is None else [])]
    panel = Panel(view="cache", data=data, wide=True, note=t("cache.steps.note"))
    found = badges(run, head, precision, t)
    if counted is not None:
        fields = {"counted": f"{counted.counted:,}", "formula": f"{counted.formula:,}"}
        same = counted.counted == counted.formula
        said_so = t(f"cache.steps.badge.work{'' if same else '.differ'}", **fields)
        found.append(Badge(same, said_so, t("cache.steps.badge.work.title")))
    return Picture([panel], found, said, part)


# ---- what the drawing gets


def _run(run: "CacheRun") -> dict[str, Any]:
    opening, shape = run.opening, run.opening.shape
    folded = max(0, len(opening.tokens) - SHOWN)
    said = run.steps[-1].said
    return {
        "folded": folded,
        "tokens": [token.label for token in opening.tokens[folded:]],
        "said": [token.label for token in said],
        "memory": [token.label for token in opening.memory[:SHOWN]],
        "n_memory": len(opening.memory),
        "kv_heads": [one.kv_heads for one in shape.own],
        "q_heads": [one.heads for one in shape.own],
        "cross_heads": [one.kv_heads for one in shape.cross],
        "cross_q_heads": [one.heads for one in shape.cross],
        "own": opening.own,
        "formula": _formula(run),
        "steps": [_step(step, opening.own) for step in run.steps],
    }


def _formula(run: "CacheRun") -> dict[str, Any]:
    """The factors of bytes a token; kv_heads 0 where layers differ and only the product can be told."""
    shape, (first, *others) = run.opening.shape, run.opening.shape.own
    alike = first.head_dim == first.value_dim and all(
        (one.kv_heads, one.head_dim, one.value_dim) == (first.kv_heads, first.head_dim, first.value_dim)
        for one in others
    )
    return {
        "layers": len(shape.own),
        "kv_heads": first.kv_heads if alike else 0,
        "head_dim": first.head_dim,
        "element": shape.element,
        "token": shape.cached("own"),
        "memory": shape.cached("cross"),
        "window": max((one.window or 0 for one in shape.own), default=0),
    }


def _step(step: "CacheStep", own: str) -> dict[str, Any]:
    from tfviz.introspection.cache_trace import parts_of

    first = [begin for begin, _ in step.held]
    read = [step.seen[own, layer].held for layer in range(len(step.held))]
    return {
        "new": step.new,
        "total": step.total,
        "first": first if any(first) else 0,
        "read": read if len({*read}) > 1 or any(first) else read[0],
        "ms": [round(1e3 * seconds, 3) for seconds in (step.seconds, step.seconds_without)],
        "bytes": [step.own_bytes, step.cross_bytes],
        "work": [list(parts_of(work).values()) for work in (step.work, step.work_without)],
        "ended": step.ended,
    }


def _head(run: "CacheRun", head: "HeadTrace", vectors: bool) -> dict[str, Any]:
    """The chosen head: its attention rows, shapes, and of every vector the colours and the first numbers."""
    folded = 0 if head.kind == "cross" else max(0, len(run.opening.tokens) - SHOWN)
    end = SHOWN if head.kind == "cross" else None
    rows = [np.nan_to_num(row, nan=-1.0) for row in head.weights]
    shown = [row[folded:end] for row in rows]
    seen = run.steps[0].seen[head.kind, head.layer]
    data = {
        "kind": head.kind,
        "layer": head.layer,
        "head": head.head,
        "group": head.group,
        "heads": len(seen.query),
        "groups": len(seen.key),
        "dims": [seen.query.shape[2], seen.value.shape[2]],
        "rows": _pack(np.concatenate(shown), "<f4"),
        "row_lengths": [len(row) for row in shown],
        "rest": [float(row[:folded].clip(min=0).sum()) for row in rows] if folded else [],
    }
    if vectors:
        query = np.stack(head.query)
        data["vectors"] = {
            "q": _vectors(query),
            "k": _vectors(head.key[folded:end]),
            "v": _vectors(head.value[folded:end]),
        }
    return data


def _vectors(rows: np.ndarray) -> dict[str, Any]:
    """Colours as whole numbers from -127 to 127 of the largest entry; the first few entries as they are."""
    most = float(np.abs(rows).max(initial=0)) or 1.0
    few = [[float(f"{x:.4g}") for x in row[:FEW]] for row in rows.tolist()]
    return {"shape": list(rows.shape), "ink": _pack(np.rint(rows / most * 127), "i1"), "few": few}


def _pack(array: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


def _words(t: Translator) -> dict[str, str]:
    """With their {fields} left for the drawing to fill."""
    return {word: t(f"cache.steps.{word}", **{name: f"{{{name}}}" for name in FIELDS}) for word in WORDS}


def _notes(run: "CacheRun", wanted: int, t: Translator) -> list[str]:
    said, opening = [], run.opening
    if opening.room is not None and opening.room < wanted and not run.steps[-1].ended:
        said.append(t("cache.steps.note.room", n=opening.room))
    if len(opening.tokens) > SHOWN:
        said.append(t("cache.steps.note.folded", n=len(opening.tokens) - SHOWN, shown=SHOWN))
    if opening.shape.uncounted:
        said.append(t("cache.steps.note.experts"))
    return said


# ---- what was checked


def badges(run: "CacheRun", head: "HeadTrace", precision: str, t: Translator) -> list[Badge]:
    """Of the arrays and numbers that are shown."""
    steps, exact = run.steps, precision == "fp32"
    worst = max(steps, key=lambda step: step.difference)
    held = worst.difference <= rounding.layers() * worst.largest
    fields = {"off": significant(worst.difference), "n": len(steps), "largest": significant(worst.largest)}
    same = sum(step.same for step in steps)
    label = {"precision": precision_label(precision)}
    found = [
        Badge(
            held if exact else None,
            t("cache.steps.badge.logits", **fields),
            t("cache.steps.badge.logits.title" if exact else "cache.steps.badge.inexact.title", **label),
        ),
        Badge(
            True if same == len(steps) else False if exact else None,
            t(
                "cache.steps.badge.tokens" if same == len(steps) else "cache.steps.badge.tokens.differ",
                same=same,
                n=len(steps),
            ),
            t("cache.steps.badge.tokens.title"),
        ),
        _bytes(run, t),
    ]
    sums = [float(np.nansum(row, dtype=np.float64)) for row in head.weights]
    off = max(abs(total - 1) for total in sums)
    found.append(Badge(off < 1e-3, t("cache.steps.badge.rows", off=significant(off))))
    return found


def _bytes(run: "CacheRun", t: Translator) -> Badge:
    """The cache's tensors against the formula, at every step."""
    wrong = [
        step for step in run.steps if (step.own_bytes, step.cross_bytes) != (step.predicted_own, step.predicted_cross)
    ]
    step = wrong[0] if wrong else run.steps[-1]
    fields = {
        "measured": f"{step.own_bytes + step.cross_bytes:,}",
        "predicted": f"{step.predicted_own + step.predicted_cross:,}",
        "n": len(run.steps),
        "step": step.index + 1,
    }
    key = "cache.steps.badge.bytes.differ" if wrong else "cache.steps.badge.bytes"
    return Badge(not wrong, t(key, **fields), t("cache.steps.badge.bytes.title"))


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.work import step_work
    from tfviz.introspection.cache_trace import cache_steps
    from tfviz.model.kv_cache import AttentionCache

    return AttentionCache, cache_steps, step_work


SECTION = Section(
    key="cache.steps",
    draw=draw,
    formulas=FORMULAS,
    selects=("kind", "layer", "head"),
    origin=True,
    asks=True,
    tries=(Try("last", place={"layer": 99}), Try("twice", sentence="the cat saw the other cat. the cat saw the")),
    code=code,
)
