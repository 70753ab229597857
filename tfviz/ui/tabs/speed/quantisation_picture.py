"""Inside quantisation, the picture: a window of the matrix before and after, levels, errors, outliers, the table."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.speed_quantisation import bits_curve, error_histogram, input_channels, level_histogram
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, megabytes, significant

if TYPE_CHECKING:  # torch comes with them
    from torch import Tensor

    from tfviz.inference.quantisation import Quantised, Scaled, Scheme
    from tfviz.introspection.quantisation import Matrix, Outcome

METHODS = ("rtn", "gptq", "awq")
WINDOW = 64  # rows and columns that are drawn
BINS = 121
FAR = 4  # standard deviations of an error that its histogram reaches
HALF = 0.505  # of a step: FP16 scales may fall short of the range by 1e-5, which 255 levels add up to 0.003
ON_LEVELS = 1e-3  # of a step: how far the array may be off its levels
MARKED = 12  # outlier channels drawn as dots


@dataclass(frozen=True, eq=False)
class Shown:
    """Everything that the picture is drawn from."""

    matrix: "Matrix"
    part: str  # that was asked for
    method: str
    scheme: "Scheme"
    made: "Mapping[str, Quantised | Scaled]"  # by method, at the chosen bits; those that are known
    outcomes: "Mapping[tuple[str, Scheme], Sequence[Outcome]]"  # by method and scheme (at 4 bits), for each of BITS
    model: str = ""
    precision: str = "fp32"
    id: str = ""

    def outcome(self, method: str, scheme: "Scheme | None" = None) -> "Outcome | None":
        """At the chosen bits."""
        found = self.outcomes.get((method, replace(scheme or self.scheme, bits=4)), ())
        return next((one for one in found if one.bits == self.scheme.bits), None)


def picture(shown: Shown, t: Translator, part: float | None = None) -> Picture:
    """`part`: of a measurement that goes on."""
    method = shown.method if shown.method in shown.made else "rtn"
    arrays = {name: one.dequantised() for name, one in shown.made.items()}
    panels = [
        _window(shown, method, arrays[method], t),
        _choice(shown, arrays, t),
        Panel(_curve(shown, t), t("speed.quantisation.curve"), t("speed.quantisation.curve.note"), select={}),
        _levels(shown, method, t),
        _errors(shown, arrays, t),
        _channels(shown, t),
        _table(shown, t),
    ]
    return Picture(panels, badges(shown, arrays, t), notes(shown, t), part)


def plain_of(made: "Quantised | Scaled") -> "Quantised":
    found: Quantised = getattr(made, "quantised", made)  # type: ignore[arg-type]
    return found


def notes(shown: Shown, t: Translator) -> list[str]:
    """What is looked at instead of what was asked for, what was cut, and where the weights come from."""
    from tfviz.introspection.quantisation import MOST_INPUTS

    matrix, said = shown.matrix, []
    if shown.part not in matrix.parts:
        said.append(t("speed.quantisation.note.other", part=_part(shown.part, t), name=matrix.name))
    elif len(matrix.parts) > 1:
        parts = ", ".join(_part(one, t) for one in matrix.parts)
        said.append(t("speed.quantisation.note.fused", parts=parts, name=matrix.name))
    if len(matrix.weight) < matrix.n_out:
        said.append(t("speed.quantisation.note.cut", n=f"{len(matrix.weight):,}", all=f"{matrix.n_out:,}"))
    if matrix.rounded:
        said.append(t("speed.quantisation.note.rounded", precision=shown.precision.upper()))
    if matrix.n_in > MOST_INPUTS:
        said.append(t("speed.quantisation.note.wide", n=f"{matrix.n_in:,}", most=f"{MOST_INPUTS:,}"))
    elif len(matrix.calibration) < matrix.n_in:
        n, inputs = f"{len(matrix.calibration):,}", f"{matrix.n_in:,}"
        said.append(t("speed.quantisation.note.few", n=n, inputs=inputs))
    if matrix.already is not None:
        said.append(t("speed.quantisation.note.already", bits=matrix.already, n=2**matrix.already, model=shown.model))
    elif matrix.n_in % 32 == 0:
        said.append(t("speed.quantisation.note.never", model=shown.model))
    return said


def _part(part: str, t: Translator) -> str:
    return t(f"speed.quantisation.part.{part}")


# ---- the matrix


def _window(shown: Shown, method: str, array: "Tensor", t: Translator) -> Panel:
    """64 x 64 cells around the largest activations' channel and that column's largest weight."""
    from tfviz.introspection.quantisation import outliers

    matrix, made = shown.matrix, plain_of(shown.made[method])
    top = outliers(matrix)
    column, row = int(top[0]), int(matrix.weight[:, top[0]].abs().argmax())
    (n_out, n_in), width = matrix.weight.shape, shown.scheme.width(matrix.n_in)
    first = _start(row, n_out, 1), _start(column, n_in, min(width, 16))
    cut = (slice(first[0], first[0] + WINDOW), slice(first[1], first[1] + WINDOW))
    step = made.step().expand(n_out, n_in)[cut]
    if hasattr(shown.made[method], "scales"):
        step = step / shown.made[method].scales[cut[1]]  # type: ignore[union-attr]
    rows, columns = step.shape
    fields = {name: f"{{{name}}}" for name in ("row", "column", "before", "after", "level", "error", "step")}  # for JS
    names = ("before", "after", "error", "step", "read", "outlier")
    words = {name: t(f"speed.quantisation.window.{name}", **fields) for name in names}
    data = {
        "id": f"{shown.id}/{matrix.name}",
        "rows": rows,
        "columns": columns,
        "row": first[0],
        "column": first[1],
        "at": [row - first[0], column - first[1]],
        "before": _packed(matrix.weight[cut], np.float32),
        "after": _packed(array[cut], np.float32),
        "step": _packed(step, np.float32),
        "levels": _packed(made.levels[cut], np.int16),
        "width": width,
        "marked": [int(one) for one in top if first[1] <= int(one) < first[1] + columns],
        "words": words,
    }
    where = {"name": matrix.name, "out": f"{matrix.n_out:,}", "in": f"{n_in:,}"}
    said = {"row": first[0], "last_row": first[0] + rows - 1, "column": first[1], "last_column": first[1] + columns - 1}
    note = t("speed.quantisation.window.note", **said, channel=column)
    return Panel(view="quantised", data=data, title=t("speed.quantisation.window", **where), note=note, wide=True)


def _start(at: int, n: int, unit: int) -> int:
    """The first of WINDOW places around `at`, inside 0 .. n, at a multiple of `unit` where that is possible."""
    return max(0, min((at - WINDOW // 2) // unit * unit, n - WINDOW))


def _packed(values: "Tensor", kind: type) -> str:
    return base64.b64encode(np.ascontiguousarray(values.numpy(), dtype=kind).tobytes()).decode()


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


def _levels(shown: Shown, method: str, t: Translator) -> Panel:
    """What is rounded, and the levels of the finest, the middle and the coarsest part."""
    made = plain_of(shown.made[method])
    values = shown.matrix.weight
    if hasattr(shown.made[method], "scales"):
        values = values * shown.made[method].scales  # type: ignore[union-attr]
    edges, counts = _histogram(values, float(values.min()), float(values.max()))
    scale, low = made.scale.flatten(), made.low.flatten()
    order = scale.argsort()
    picks = (
        {"all": order[0]}
        if len(order) == 1
        else dict(zip(("fine", "middle", "coarse"), order[[0, len(order) // 2, -1]], strict=True))
    )
    codes = np.arange(made.scheme.lowest, made.scheme.highest + 1, dtype=np.float32)
    rugs = {
        t(f"speed.quantisation.levels.{name}", step=significant(float(scale[i]))): codes * float(scale[i])
        + float(low[i])
        for name, i in picks.items()
    }
    words = [
        t("speed.quantisation.levels.scaled" if method == "awq" else "speed.quantisation.levels.weight"),
        t("speed.quantisation.levels.count"),
    ]
    figure = level_histogram(edges, counts, {name: one.astype(np.float32) for name, one in rugs.items()}, words=words)
    steps = [significant(float(scale[i])) for i in order[[0, len(order) // 2, -1]]]
    key = "one" if len(order) == 1 else "many"
    fields = {"n": f"{len(order):,}", "smallest": steps[0], "median": steps[1], "largest": steps[2]}
    return Panel(figure, t("speed.quantisation.levels"), t(f"speed.quantisation.levels.note.{key}", **fields))


def _errors(shown: Shown, arrays: "Mapping[str, Tensor]", t: Translator) -> Panel:
    off = {name: array - shown.matrix.weight for name, array in arrays.items()}
    reach = max(max(float(one.std()) for one in off.values()) * FAR, 1e-9)
    found = {name: _histogram(one, -reach, reach) for name, one in off.items()}
    half = float(plain_of(shown.made["rtn"]).scale.median()) / 2
    words = [t(f"speed.quantisation.errors.{name}") for name in ("error", "count", "half")]
    counts = {_method(name, t): counts for name, (_, counts) in found.items()}
    figure = error_histogram(found["rtn"][0], counts, half if half < reach else None, words=words)
    return Panel(figure, t("speed.quantisation.errors"), t("speed.quantisation.errors.note"))


def _histogram(values: "Tensor", low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """(edges, counts); what lies outside is not counted."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, BINS + 1, dtype=np.float32), values.flatten().histc(BINS, low, high).numpy()


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
    scaled = shown.made.get("awq")
    if scaled is not None:
        by = float(scaled.scales[int(top[0])] / scaled.scales.median())  # type: ignore[union-attr]
        alpha = f"{scaled.alpha:.1f}"  # type: ignore[union-attr]
        note += " " + t("speed.quantisation.channels.awq", alpha=alpha, by=f"{by:.2f}x", channel=int(top[0]))
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


def _choice(shown: Shown, arrays: "Mapping[str, Tensor]", t: Translator) -> Panel:
    """The three methods at the chosen scheme and bits."""
    from tfviz.inference.quantisation import output_error, step_error

    matrix, rows = shown.matrix, []
    for method in METHODS:
        found, array = shown.outcome(method), arrays.get(method)
        if found is None or array is None:
            rows.append((_method(method, t), ["–"] * 7))
            continue
        size = found.bits_a_weight * matrix.n_out * matrix.n_in / 8
        here = output_error(matrix.sentence, matrix.weight, array)
        errors = [percent_of(one) for one in (found.weight_error, found.calibration, found.held_out, here)]
        steps = significant(step_error(matrix.weight, shown.made[method])) if method != "awq" else "–"  # type: ignore[arg-type]
        rows.append((_method(method, t), [f"{found.bits_a_weight:.2f}", megabytes(size), *errors, steps]))
    names = ("bits", "bytes", "weight", "calibration", "held_out", "sentence", "steps")
    heads = [t(f"speed.quantisation.head.{name}") for name in names]
    name = scheme_name(shown.scheme, t)
    title = t("speed.quantisation.choice", scheme=name, bits=shown.scheme.bits)
    whole = megabytes(4 * matrix.n_out * matrix.n_in)
    counts = {"learnt": len(matrix.calibration), "held": len(matrix.held_out), "sentence": len(matrix.sentence)}
    note = t("speed.quantisation.choice.note", whole=whole, **counts)
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


# ---- checks


def badges(shown: Shown, arrays: "Mapping[str, Tensor]", t: Translator) -> list[Badge]:
    """What the arrays shown must keep to."""
    method = shown.method if shown.method in shown.made else "rtn"
    found = [_few_levels(shown, method, arrays[method], t), _half_a_step(shown, arrays["rtn"], t)]
    rtn, gptq, awq = (shown.outcome(name) for name in METHODS)
    if rtn is not None and gptq is not None:
        fields = {"gptq": percent_of(gptq.calibration), "rtn": percent_of(rtn.calibration)}
        title = t("speed.quantisation.badge.gptq.title")
        holds = _at_most(gptq.calibration, rtn.calibration)
        found.append(Badge(holds, t("speed.quantisation.badge.gptq", **fields), title))
        better = "better" if gptq.held_out < rtn.held_out else "same" if gptq.held_out == rtn.held_out else "worse"
        fields = {"gptq": percent_of(gptq.held_out), "rtn": percent_of(rtn.held_out)}
        found.append(Badge(None, t(f"speed.quantisation.badge.unseen.{better}", **fields)))
    if rtn is not None and awq is not None:
        fields = {"awq": percent_of(awq.calibration), "rtn": percent_of(rtn.calibration)}
        found.append(Badge(_at_most(awq.calibration, rtn.calibration), t("speed.quantisation.badge.awq", **fields)))
    return found


def _at_most(one: float, other: float) -> bool:
    return one <= other * (1 + 1e-5) + 1e-7


def _few_levels(shown: Shown, method: str, array: "Tensor", t: Translator) -> Badge:
    """Counted in the array; AWQ's is multiplied by its channels' scales again first."""
    from tfviz.inference.quantisation import distinct_levels

    scales = getattr(shown.made[method], "scales", None)
    most, gap = distinct_levels(array if scales is None else array * scales, plain_of(shown.made[method]))
    holds = most <= 2**shown.scheme.bits and gap <= ON_LEVELS
    share = t(f"speed.quantisation.badge.of.{shown.scheme.share}")
    fields = {"most": most, "allowed": 2**shown.scheme.bits, "bits": shown.scheme.bits, "part": share}
    return Badge(
        holds, t("speed.quantisation.badge.levels" if gap <= ON_LEVELS else "speed.quantisation.badge.off", **fields)
    )


def _half_a_step(shown: Shown, array: "Tensor", t: Translator) -> Badge:
    """Of plain rounding, from the array."""
    made = plain_of(shown.made["rtn"])
    step = made.step()
    off = (array - shown.matrix.weight).abs()
    allowed = HALF * step + 1e-6 * shown.matrix.weight.abs() + 1e-9
    most = float((off / step.clamp_min(1e-12)).max()) if bool((step > 0).any()) else 0.0
    return Badge(bool((off <= allowed).all()), t("speed.quantisation.badge.half", most=significant(most)))


__all__ = ["METHODS", "Shown", "badges", "picture", "scheme_name"]
