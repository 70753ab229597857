"""Speed, memory, the picture: one load in parts, what fits, every precision, and the check on this machine."""

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from tfviz.figures.speed_memory import memory_bars
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, megabytes, significant
from tfviz.ui.tabs.cache.planner_picture import packed_note

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.memory_shapes import Load, Model
    from tfviz.introspection.memory_check import Check, Checks

ROWS = ("fp32", "bf16", "int8", "int8_weights", "int4")
TRAINED = ("fp32", "bf16")
WITHIN = 0.03  # of what was measured: weights and cache
SAID_OF_THE_WHOLE = ("tower", "windowless")  # remarks of the cache's planner that are about more than the cache
UNTOUCHED = 0.05  # share of the parameters from which it is said that they are not quantised


def picture(
    model: "Model",
    load: "Load",
    memory: float,
    checks: "Checks",
    where: Mapping[str, str],
    t: Translator,
    part: float | None = None,
) -> Picture:
    """Facts, bars, tables; then the model on the page, predicted against measured."""
    from tfviz.inference.memory_plan import plan

    shown = replace(load, precision=load.trained) if load.training else load
    parts = plan(model, shown)
    panels = [
        Panel(html=facts(model, shown, parts, memory, t), title=model.label, wide=True),
        _bars(model, shown, memory, t),
        _check_panel(checks, where, t),
    ]
    if part is None:
        panels += [_rows(model, shown, memory, t), _kinds(model, shown, t)]
    drawn = badges(model, shown, parts, memory, checks, t)
    return Picture(panels, [] if part is not None else drawn, notes(model, load, memory, parts, t), part)


def notes(model: "Model", load: "Load", memory: float, parts: Mapping[str, int], t: Translator) -> list[str]:
    from tfviz.inference.memory_shapes import FLOAT_BYTES

    said = []
    if load.training and load.precision not in FLOAT_BYTES:
        said.append(t("speed.memory.note.trained"))
    limit = model.cache.limit
    if limit is not None and load.context > limit:
        said.append(t("cache.planner.beyond", n=f"{load.context:,}", limit=f"{limit:,}"))
    if model.weights.formula:
        said.append(t("speed.memory.note.formula"))
    said += [t(f"cache.planner.remark.{one}") for one in model.cache.remarks if one in SAID_OF_THE_WHOLE]
    said += packed_note(model.cache, t)
    plain = sum(one.count for one in model.weights.matrices if one.role == "plain") / max(model.weights.parameters, 1)
    if plain > UNTOUCHED:
        said.append(t("speed.memory.note.plain", share=f"{100 * plain:.0f} %"))
    if not model.forward.layers:
        said.append(t("speed.memory.note.state"))
    if parts["weights"] >= memory:
        fields = {"weights": megabytes(parts["weights"]), "memory": megabytes(memory)}
        said.append(t("speed.memory.note.too_large", **fields))
    return said


def facts(model: "Model", load: "Load", parts: Mapping[str, int], memory: float, t: Translator) -> str:
    """The answers in large type."""
    from tfviz.inference.memory_plan import MOST, largest_load

    whole = sum(parts.values())
    context, batch = largest_load(model, load, memory)
    far, many = (t("cache.planner.endless") if one >= MOST else f"{one:,}" for one in (context, batch))
    rest = memory - whole
    spare = "speed.memory.fact.spare" if rest >= 0 else "speed.memory.fact.lacks"
    asked = {"n": f"{load.context:,}", "batch": f"{load.batch:,}", "memory": megabytes(memory)}
    cards = [
        (_count(model.weights.parameters), t("speed.memory.fact.parameters")),
        (megabytes(whole), t(f"speed.memory.fact.{'training' if load.training else 'inference'}", **asked)),
        (megabytes(abs(rest)), t(spare, **asked)),
        (far, t("speed.memory.fact.context", **asked)),
        (many, t("speed.memory.fact.batch", **asked)),
    ]
    items = "".join(f"<div><dt>{escape(said)}</dt><dd>{escape(value)}</dd></div>" for value, said in cards)
    to = t("speed.memory.to_planner")
    where = 'class="tv-memory-link" data-tab="cache" data-section="cache.planner"'
    link = f'<button type="button" {where}>{escape(to)}</button>'
    return f'<dl class="tv-plan-facts">{items}</dl>{link}'


def _count(n: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{significant(n / size, 4)} {unit}"
    return str(n)


def loads(load: "Load", t: Translator) -> dict[str, "Load"]:
    """The rows of bars and table: every precision; in training each with and without recomputing."""
    if not load.training:
        return {t(f"speed.memory.precision.{one}"): replace(load, precision=one) for one in ROWS}
    return {
        t(f"speed.memory.trained.{one}{'.again' if again else ''}"): replace(load, precision=one, recompute=again)
        for one in TRAINED
        for again in (False, True)
    }


def _bars(model: "Model", load: "Load", memory: float, t: Translator) -> Panel:
    from tfviz.inference.memory_plan import PARTS, plan

    rows = loads(load, t)
    chosen = next((name for name, one in rows.items() if one == load), "")
    bytes_ = {name: plan(model, one) for name, one in rows.items()}
    names = {part: t(f"speed.memory.part.{part}") for part in PARTS}
    words = [t("speed.memory.axis"), t("speed.memory.line", memory=megabytes(memory))]
    figure = memory_bars(bytes_, memory, names, chosen, words=words)
    return Panel(figure, t("speed.memory.bars"), t("speed.memory.bars.note"), wide=True)


def _rows(model: "Model", load: "Load", memory: float, t: Translator) -> Panel:
    from tfviz.inference.memory_plan import MOST, largest_load, plan

    rows = []
    parts = (
        ("weights", "gradients", "optimizer", "activations") if load.training else ("weights", "cache", "activations")
    )
    for name, one in loads(load, t).items():
        sizes = plan(model, one)
        context, batch = largest_load(model, one, memory)
        fits = [t("cache.planner.endless") if n >= MOST else f"{n:,}" for n in (context, batch)]
        rows.append((name, [*(megabytes(sizes[part]) for part in parts), megabytes(sum(sizes.values())), *fits]))
    heads = [t(f"speed.memory.part.{part}") for part in parts]
    heads += [t(f"speed.memory.head.{one}") for one in ("total", "context", "batch")]
    note = t(f"speed.memory.rows.note.{'training' if load.training else 'inference'}")
    html = table(t("speed.memory.rows"), heads, rows)
    return Panel(html=html, title=t("speed.memory.rows"), note=note, wide=True)


def _kinds(model: "Model", load: "Load", t: Translator) -> Panel:
    """Parameters of each kind, and their bytes at the chosen precision."""
    rows = []
    whole = max(model.weights.parameters, 1)
    for kind, count in model.weights.by_kind().items():
        size = sum(one.nbytes(load.precision) for one in model.weights.matrices if one.kind == kind)
        cells = [f"{count:,}", f"{100 * count / whole:.1f} %", megabytes(size)]
        rows.append((t(f"speed.memory.kind.{kind}"), [*cells, f"{significant(8 * size / count)}"]))
    total = model.weights.nbytes(load.precision)
    bits = significant(8 * total / whole)
    rows.append((t("speed.memory.kind.all"), [f"{whole:,}", "", megabytes(total), bits]))
    heads = [t(f"speed.memory.head.{one}") for one in ("count", "share", "bytes", "bits")]
    html = table(t("speed.memory.kinds"), heads, rows)
    return Panel(html=html, title=t("speed.memory.kinds"), note=t("speed.memory.kinds.note"), wide=True)


def _check_panel(checks: "Checks", where: Mapping[str, str], t: Translator) -> Panel:
    rows = []
    for one in checks.found:
        name = t(f"speed.memory.check.{one.name}", n=f"{one.tokens:,}")
        rows.append((name, [megabytes(one.predicted), megabytes(one.measured), _error(one)]))
    heads = [t(f"speed.memory.head.{one}") for one in ("predicted", "measured", "error")]
    html = table(t("speed.memory.check", **where), heads, rows)
    said = [t("speed.memory.check.note" if len(checks.found) > 1 else "speed.memory.check.ready")]
    if checks.left_out:
        said.append(t(f"speed.memory.check.{checks.left_out}"))
    if any(one.name in ("naive", "flash") and one.measured > 2 * one.predicted for one in checks.found):
        said.append(t("speed.memory.check.copied"))
    return Panel(html=html, title=t("speed.memory.check", **where), note=" ".join(said), wide=True)


def _error(one: "Check") -> str:
    return f"{100 * one.error:+.2f} %".replace("-", "\u2212")


def badges(
    model: "Model", load: "Load", parts: Mapping[str, int], memory: float, checks: "Checks", t: Translator
) -> list[Badge]:
    """Kinds add up to the whole; the largest context is the largest; weights and cache meet what was measured."""
    from tfviz.inference.memory_plan import MOST, largest_load, total

    made = []
    summed = sum(model.weights.by_kind().values())
    said = model.cache.n_parameters
    whole = model.weights.parameters
    if said:
        agree = abs(whole / said - 1) < 1e-3
        made.append(Badge(agree, t("speed.memory.badge.parameters", own=f"{whole:,}", said=f"{said:,}")))
    made.append(Badge(summed == whole, t("speed.memory.badge.kinds", n=f"{summed:,}")))
    context, _ = largest_load(model, load, memory)
    if 0 < context < MOST:
        here, further = (
            total(model, replace(load, context=n, source=n if load.source else 0)) for n in (context, context + 1)
        )
        made.append(
            Badge(here <= memory < further, t("speed.memory.badge.fits", n=f"{context:,}", next=f"{context + 1:,}"))
        )
    for one in checks.found:
        fields: dict[str, Any] = {
            "predicted": f"{one.predicted:,}",
            "measured": f"{one.measured:,}",
            "error": _error(one),
        }
        if one.exact:
            made.append(Badge(abs(one.error) <= WITHIN, t(f"speed.memory.badge.{one.name}", **fields)))
    return made
