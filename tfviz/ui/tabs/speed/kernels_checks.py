"""What a sweep over kernels says: exponents, where curves cross, and the badges of what was checked on its points."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tfviz.ui.components.picture import Badge
from tfviz.ui.i18n import Translator, ratio, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.experiments.kernel_sweep import Sweep
    from tfviz.introspection.experiments.kernels import KernelPoint
    from tfviz.introspection.growth import Fit

TOLERANCE = {"fp32": 1e-5, "fp16": 8e-3, "bf16": 6.4e-2}  # the narrow ones: 8 steps at 1.0; values reach about 5
MEMORY_OFF = 0.02  # the naive peak may differ so much from the formula
WEIGHTY = 2**20  # bytes of a peak from which it is compared: below, a library's own buffer of a few KiB weighs
SQUARE = 0.1  # the naive peak's exponent may differ so much from the formula's
LINEAR = 1.25  # the fused peak's, at most; below 1 while buffers of a constant size weigh
STEPPED = 1024  # tokens up to which torch's kernel takes larger blocks for longer texts, and buffers for them


def of(found: "Sweep", kernel: str) -> list["KernelPoint"]:
    return [one for one in found.points if kernel in one.latency]


def both(found: "Sweep") -> list["KernelPoint"]:
    return [one for one in of(found, "naive") if "flash" in one.latency]


def measured(found: "Sweep") -> list[str]:
    return [kernel for kernel in found.kernels if of(found, kernel)]


def fit_of(found: "Sweep", kernel: str, what: str) -> "Fit | None":
    """`what`: time | memory."""
    from tfviz.introspection.growth import fit

    points = of(found, kernel)
    values = [one.latency[kernel].median if what == "time" else one.peak_bytes[kernel] for one in points]
    return fit([one.setting.n for one in points], values)


def crossing_of(found: "Sweep") -> float | None:
    """The size from which flash is the faster one for good."""
    from tfviz.introspection.growth import crossing

    pairs = both(found)
    medians = ([one.latency[kernel].median for one in pairs] for kernel in ("flash", "naive"))
    return crossing([one.setting.n for one in pairs], *medians) if pairs else None


def badges(found: "Sweep", t: Translator) -> list[Badge]:
    """Outputs (and gradients) agree, the naive peak is the formula's, memory grows as promised; what else is found."""
    return [*_agreement(found, t), *_by_formula(found, t), *_growth(found, t), *_told(found, t)]


def _agreement(found: "Sweep", t: Translator) -> list[Badge]:
    allowed, told = TOLERANCE[found.base.dtype], []
    for what in ("max_abs", "gradient_abs"):
        apart = [value for one in found.points for value in getattr(one, what).values()]
        if apart:
            worst = float(np.max(apart))  # nan stays: it is no agreement
            fields = {"apart": significant(worst), "allowed": significant(allowed), "dtype": found.base.dtype.upper()}
            key = f"speed.kernels.badge.{what}" + ("" if worst <= allowed else ".differ")
            told.append(Badge(worst <= allowed, t(key, **fields), t("speed.kernels.badge.agree.title")))
    return told


def _by_formula(found: "Sweep", t: Translator) -> list[Badge]:
    from tfviz.introspection.experiments.kernels import naive_bytes

    weighty = [one for one in of(found, "naive") if naive_bytes(one.setting) >= WEIGHTY]
    offs = [(one.peak_bytes["naive"] / naive_bytes(one.setting) - 1, one.setting.n) for one in weighty]
    if not offs:
        return []
    off, n = max(offs, key=lambda pair: abs(pair[0]))
    holds = abs(off) <= MEMORY_OFF
    key = "speed.kernels.badge.formula" + ("" if holds else ".differ")
    fields = {"off": f"{100 * abs(off):.1f} %", "n": f"{n:,}"}
    return [Badge(holds, t(key, **fields), t("speed.kernels.badge.formula.title"))]


def _growth(found: "Sweep", t: Translator) -> list[Badge]:
    """As n^2 once n is beyond the width of a head; before that, as the formula says for the same sizes."""
    from tfviz.introspection.experiments.kernels import naive_bytes
    from tfviz.introspection.growth import fit

    naive, flash = (fit_of(found, kernel, "memory") for kernel in ("naive", "flash"))
    if naive is None or flash is None:
        return []
    formula = fit(naive.used, [naive_bytes(replace(found.base, n=n)) for n in naive.used])
    assert formula is not None, naive.used
    square, linear = abs(naive.exponent - formula.exponent) <= SQUARE, flash.exponent <= LINEAR
    holds = None if square and not linear and flash.used[-1] <= STEPPED else square and linear
    fields = {"naive": f"{naive.exponent:.2f}", "flash": f"{flash.exponent:.2f}"}
    return [Badge(holds, t("speed.kernels.badge.growth", **fields), t("speed.kernels.badge.growth.title"))]


def _told(found: "Sweep", t: Translator) -> list[Badge]:
    """Not checks: which kernel torch took, how much faster, from where on."""
    used = sorted({one.backend["flash"] for one in found.points if "flash" in one.backend})
    told = []
    if used:
        names = t("speed.kernels.comma").join(t(f"speed.kernels.backend.{one}") for one in used)
        title = t("speed.kernels.badge.backend.title")
        told.append(Badge(None, t("speed.kernels.badge.backend", names=names), title))
    pairs = both(found)
    if not pairs:
        return told
    gain = pairs[-1].latency["naive"].median / pairs[-1].latency["flash"].median
    key = "speed.kernels.badge." + ("faster" if gain >= 1 else "slower")
    told.append(Badge(None, t(key, n=f"{pairs[-1].setting.n:,}", ratio=ratio(max(gain, 1 / gain)))))
    met = crossing_of(found)
    if met is not None:
        told.append(Badge(None, t("speed.kernels.badge.crossing", n=significant(met))))
    elif all(one.latency["naive"].median > one.latency["flash"].median for one in pairs):
        told.append(Badge(None, t("speed.kernels.badge.always", n=f"{pairs[0].setting.n:,}")))
    return told
