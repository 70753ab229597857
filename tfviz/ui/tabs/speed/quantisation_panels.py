"""Inside quantisation, the panels: a window of the matrix, the numbers, levels, errors, outliers, all schemes."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.speed_quantisation import bits_curve, error_histogram, input_channels, level_histogram
from tfviz.ui.components.picture import Panel, table
from tfviz.ui.i18n import Translator, megabytes, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.quantisation import Scheme
    from tfviz.introspection.quantisation import Matrix, Outcome
    from tfviz.introspection.quantisation_look import Look

METHODS = ("rtn", "gptq", "awq")
MARKED = 12  # outlier channels drawn as dots


@dataclass(frozen=True, eq=False)
class Shown:
    """Everything that the picture is drawn from."""

    matrix: "Matrix"
    part: str  # that was asked for
    method: str
    scheme: "Scheme"
    looks: "Mapping[str, Look]"  # by method, at the chosen bits; those that are known, rounding at least
    outcomes: "Mapping[tuple[str, Scheme], Sequence[Outcome]]"  # by method and scheme (at 4 bits), for each of BITS
    model: str = ""
    precision: str = "fp32"
    id: str = ""

    @property
    def drawn(self) -> str:
        """Rounding where the method is not known yet, or not possible."""
        return self.method if self.method in self.looks else "rtn"

    def look(self) -> "Look":
        return self.looks[self.drawn]

    def outcome(self, method: str, scheme: "Scheme | None" = None) -> "Outcome | None":
        """At the chosen bits."""
        found = self.outcomes.get((method, replace(scheme or self.scheme, bits=4)), ())
        return next((one for one in found if one.bits == self.scheme.bits), None)


def panels(shown: Shown, t: Translator) -> list[Panel]:
    return [
        _window(shown, t),
        _choice(shown, t),
        Panel(_curve(shown, t), t("speed.quantisation.curve"), t("speed.quantisation.curve.note")),
        _levels(shown, t),
        _errors(shown, t),
        _channels(shown, t),
        _table(shown, t),
    ]


# ---- the matrix


def _window(shown: Shown, t: Translator) -> Panel:
    """Cells around the largest activations' channel and that column's largest weight."""
    from tfviz.introspection.quantisation import outliers

    matrix, found = shown.matrix, shown.look()
    (row, column), first, (rows, columns) = found.at, found.first, found.before.shape
    fields = {name: f"{{{name}}}" for name in ("row", "column", "before", "after", "level", "error", "step")}  # for JS
    names = ("before", "after", "error", "step", "read", "outlier")
    data = {
        "id": f"{shown.id}/{matrix.name}",
        "rows": rows,
        "columns": columns,
        "row": first[0],
        "column": first[1],
        "at": [row - first[0], column - first[1]],
        "before": _packed(found.before),
        "after": _packed(found.after),
        "step": _packed(found.step),
        "levels": _packed(found.levels),
        "width": shown.scheme.width(matrix.n_in),
        "marked": [one for one in outliers(matrix).tolist() if first[1] <= one < first[1] + columns],
        "words": {name: t(f"speed.quantisation.window.{name}", **fields) for name in names},
    }
    where = {"name": matrix.name, "out": f"{matrix.n_out:,}", "in": f"{matrix.n_in:,}"}
    said = {"row": first[0], "last_row": first[0] + rows - 1, "column": first[1], "last_column": first[1] + columns - 1}
    note = t("speed.quantisation.window.note", **said, channel=column)
    return Panel(view="quantised", data=data, title=t("speed.quantisation.window", **where), note=note, wide=True)


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


# ---- figures


def _curve(shown: Shown, t: Translator) -> Any:
    from tfviz.inference.quantisation.schemes import BITS

    errors = {}
    for method in METHODS:
        found = shown.outcomes.get((method, replace(shown.scheme, bits=4)), ())
        pairs = [[one.held_out for one in found], [one.calibration for one in found]]
        errors[_method(method, t)] = 100 * np.array(pairs, dtype=np.float32).reshape(2, len(found))
    whole = {name: one if one.shape[1] else np.full((2, len(BITS)), np.nan, np.float32) for name, one in errors.items()}
    words = [t(f"speed.quantisation.curve.{name}") for name in ("bits", "error", "calibration")]
    return bits_curve(np.array(BITS), whole, shown.scheme.bits, words=words)


def _levels(shown: Shown, t: Translator) -> Panel:
    """What is rounded, and the levels of the finest, the middle and the coarsest part."""
    found = shown.look()
    steps = {name: significant(step) for name, (step, _) in found.rugs.items()}
    rugs = {t(f"speed.quantisation.levels.{name}", step=steps[name]): one for name, (_, one) in found.rugs.items()}
    what = "scaled" if shown.drawn == "awq" else "weight"
    words = [t(f"speed.quantisation.levels.{one}") for one in (what, "count")]
    figure = level_histogram(found.values.edges, found.values.counts, rugs, words=words)
    if found.n_scales == 1:
        note = t("speed.quantisation.levels.note.one", median=steps["all"])
    else:
        fields = {"smallest": steps["fine"], "median": steps["middle"], "largest": steps["coarse"]}
        note = t("speed.quantisation.levels.note.many", n=f"{found.n_scales:,}", **fields)
    return Panel(figure, t("speed.quantisation.levels"), note)


def _errors(shown: Shown, t: Translator) -> Panel:
    from tfviz.introspection.quantisation_look import REACH

    edges = shown.looks["rtn"].errors.edges
    counts = {_method(name, t): one.errors.counts for name, one in shown.looks.items()}
    half = float(edges[-1]) / REACH / 2
    words = [t(f"speed.quantisation.errors.{name}") for name in ("error", "count", "half")]
    figure = error_histogram(edges, counts, half, words=words)
    return Panel(figure, t("speed.quantisation.errors"), t("speed.quantisation.errors.note"))


def _channels(shown: Shown, t: Translator) -> Panel:
    """The channels whose activations are largest, and what becomes of the error when they are left alone."""
    from tfviz.introspection.quantisation import channel_sizes, outliers

    sizes, top = channel_sizes(shown.matrix).numpy(), outliers(shown.matrix).numpy()
    words = [t(f"speed.quantisation.channels.{name}") for name in ("channel", "size", "all", "largest")]
    median = max(float(np.median(sizes)), 1e-12)
    fields = {
        "channel": int(top[0]),
        "size": significant(float(sizes[top[0]])),
        "times": significant(float(sizes[top[0]]) / median),
    }
    note = t("speed.quantisation.channels.note", **fields)
    found = shown.outcome("rtn")
    if found is not None and found.spared is not None:
        change = {"n": len(top), "before": percent_of(found.held_out), "after": percent_of(found.spared)}
        note += " " + t("speed.quantisation.channels.spared", **change)
    awq, scaled = shown.outcome("awq"), shown.looks.get("awq")
    if awq is not None and scaled is not None and scaled.by is not None:
        fields = {"alpha": f"{awq.alpha:.1f}", "by": f"{scaled.by:.2f}x", "channel": int(top[0])}
        note += " " + t("speed.quantisation.channels.awq", **fields)
    return Panel(input_channels(sizes, top[:MARKED], words=words), t("speed.quantisation.channels"), note)


# ---- numbers


def percent_of(share: float) -> str:
    """An error may be more than the whole: 0.0123 -> 1.23 %, 12.5 -> 1,250 %."""
    return f"{significant(100 * share)} %"


def _method(method: str, t: Translator) -> str:
    return t(f"speed.quantisation.method.{method}")


def scheme_name(scheme: "Scheme", t: Translator) -> str:
    share = t(f"speed.quantisation.row.{scheme.share}", n=scheme.group)
    return f"{share}, {t('speed.quantisation.row.' + ('symmetric' if scheme.symmetric else 'asymmetric'))}"


def _choice(shown: Shown, t: Translator) -> Panel:
    """The three methods at the chosen scheme and bits."""
    matrix, rows = shown.matrix, []
    for method in METHODS:
        found, look = shown.outcome(method), shown.looks.get(method)
        if found is None or look is None:
            rows.append((_method(method, t), ["–"] * 7))
            continue
        size = found.bits_a_weight * matrix.n_out * matrix.n_in / 8
        errors = [percent_of(one) for one in (found.weight_error, found.calibration, found.held_out, look.sentence)]
        steps = significant(look.steps) if method != "awq" else "–"
        rows.append((_method(method, t), [f"{found.bits_a_weight:.2f}", megabytes(size), *errors, steps]))
    names = ("bits", "bytes", "weight", "calibration", "held_out", "sentence", "steps")
    heads = [t(f"speed.quantisation.head.{name}") for name in names]
    name = scheme_name(shown.scheme, t)
    title = t("speed.quantisation.choice", scheme=name, bits=shown.scheme.bits)
    whole = megabytes(4 * matrix.n_out * matrix.n_in)
    counts = {"learnt": len(matrix.calibration), "held": len(matrix.held_out), "sentence": len(matrix.sentence)}
    note = t("speed.quantisation.choice.note", whole=whole, **counts)
    gptq = shown.outcome("gptq")
    if gptq is not None and gptq.damping is not None:
        note += " " + t("speed.quantisation.choice.damping", damping=f"{gptq.damping:g}")
    return Panel(html=table(title, heads, rows), title=title, note=note, wide=True)


def _table(shown: Shown, t: Translator) -> Panel:
    """Every scheme and method at the chosen bits, as far as it is known."""
    from tfviz.introspection.quantisation import schemes

    rows, known, listed = [], 0, schemes(shown.matrix.n_in)
    for scheme in listed:
        found = [shown.outcome(method, scheme) for method in METHODS]
        known += all(one is not None for one in found)
        bits = replace(scheme, bits=shown.scheme.bits).bits_a_weight(shown.matrix.n_out, shown.matrix.n_in)
        cells = [f"{bits:.2f}"]
        for name in ("held_out", "calibration", "weight_error"):
            cells += ["–" if one is None else percent_of(getattr(one, name)) for one in found]
        rows.append((scheme_name(scheme, t), cells))
    heads = [t("speed.quantisation.head.bits")]
    for name in ("held_out", "calibration", "weight"):
        heads += [f"{t(f'speed.quantisation.short.{name}')} {t(f'speed.quantisation.short.{one}')}" for one in METHODS]
    title = t("speed.quantisation.table", bits=shown.scheme.bits)
    note = t("speed.quantisation.table.note")
    if known < len(listed):
        note += " " + t(
            "speed.quantisation.table.missing", n=len(listed) - known, button=t("speed.quantisation.button")
        )
    return Panel(html=table(title, heads, rows), title=title, note=note, wide=True)
