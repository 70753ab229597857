"""What stands beside the flow: checks computed from the arrays that are drawn, and what has to be said about them."""

from collections.abc import Mapping

import numpy as np

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge
from tfviz.ui.components.speed_strip import precision_label
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.step.shown import KEYS_SHOWN, Shown
from tfviz.ui.tabs.step.stages import is_root

HEAD = {precision: rounding.layers(precision) for precision in rounding.EPS}  # of the largest number
OUTPUT = HEAD | {"int8": 5e-2}  # W_O rounds what it reads to 8 bits
ROUNDING = rounding.once()  # of a sum of FP32 weights


def badges(shown: Shown, t: Translator) -> list[Badge]:
    """Computed from the arrays that are drawn."""
    steps = shown.steps
    allowed = ~steps.blocked.all(axis=1)
    off = float(np.abs(steps.weights.sum(axis=1) - 1)[allowed].max(initial=0))
    rows = t("step.badge.rows.title", n=int(allowed.sum()), tolerance=significant(ROUNDING))
    found = [Badge(off <= ROUNDING, t("step.badge.rows", difference=significant(off)), rows)]
    if steps.blocked.any():
        most = float(np.abs(steps.weights[steps.blocked]).max())
        text = t("step.badge.blocked", n=int(steps.blocked.sum()), value=significant(most))
        found.append(Badge(most == 0, text, t("step.badge.blocked.title")))
    else:
        found.append(Badge(None, t("step.badge.open")))
    if shown.whole is None:
        return found
    at, width = steps.rows.index(shown.row), steps.value.shape[1]
    theirs = shown.whole.model_joined[:, shown.head * width : (shown.head + 1) * width]
    found.append(_equal("head", HEAD, steps.output, theirs, shown, t))
    found.append(_equal("output", OUTPUT, shown.whole.output[at], shown.whole.model_output[at], shown, t))
    return found


def _equal(
    name: str, tolerances: Mapping[str, float], ours: np.ndarray, theirs: np.ndarray, shown: Shown, t: Translator
) -> Badge:
    """Ours against the model's own, within the precision's tolerance of the largest number."""
    difference, most = float(np.abs(ours - theirs).max(initial=0)), float(np.abs(theirs).max(initial=0))
    tolerance = tolerances[shown.precision]
    fields = {"head": shown.head, "token": shown.queries[shown.row], "difference": significant(difference)}
    title = t(
        f"step.badge.{name}.title",
        tolerance=significant(tolerance),
        precision=precision_label(shown.precision),
        most=significant(most),
    )
    return Badge(bool(difference <= tolerance * max(most, 1e-3)), t(f"step.badge.{name}", **fields), title)


def notes(shown: Shown, t: Translator) -> list[str]:
    steps, said = shown.steps, []
    if len(shown.keys) > KEYS_SHOWN:
        said.append(t("step.flow.cut", shown=KEYS_SHOWN, n=len(shown.keys)))
    d_k = steps.key.shape[1]
    if not is_root(steps.scale, d_k):
        said.append(t("step.flow.scale", scale=f"{steps.scale:.3g}", root=significant(d_k**-0.5), d=d_k))
    if steps.blocked[steps.rows.index(shown.row)].all():
        said.append(t("step.flow.nothing", token=shown.queries[shown.row]))
    if shown.again:
        said.append(t("step.flow.again", precision=precision_label(shown.precision)))
    if shown.whole is None:
        said.append(t("step.flow.no_output", reason=shown.missing) if shown.missing else t("step.flow.hidden"))
    return said
