"""Inside quantisation, the picture: its panels, what is said above them, and what the arrays shown must keep to."""

from tfviz.ui.components.picture import Badge, Picture
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.speed.quantisation_panels import METHODS, Shown, panels, percent_of

ON_LEVELS = 1e-3  # of a step: how far the array may be off its levels


def picture(shown: Shown, t: Translator, part: float | None = None) -> Picture:
    """`part`: of a measurement that goes on."""
    return Picture(panels(shown, t), badges(shown, t), notes(shown, t), part)


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


# ---- checks


def badges(shown: Shown, t: Translator) -> list[Badge]:
    """What the arrays shown must keep to."""
    rounded = shown.looks["rtn"]
    half = t("speed.quantisation.badge.half", most=significant(rounded.steps))
    found = [_few_levels(shown, t), Badge(rounded.within_half, half)]
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


def _few_levels(shown: Shown, t: Translator) -> Badge:
    """Counted in the array; AWQ's is multiplied by its channels' scales again first."""
    found = shown.look()
    holds = found.most <= 2**shown.scheme.bits and found.gap <= ON_LEVELS
    share = t(f"speed.quantisation.badge.of.{shown.scheme.share}")
    fields = {"most": found.most, "allowed": 2**shown.scheme.bits, "bits": shown.scheme.bits, "part": share}
    return Badge(holds, t("speed.quantisation.badge." + ("levels" if found.gap <= ON_LEVELS else "off"), **fields))
