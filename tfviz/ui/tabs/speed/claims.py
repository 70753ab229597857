"""Speed, claims: every claim of the article with a number in it, this machine's own beside it, and what follows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed.claims_list import CLAIMS
from tfviz.ui.tabs.speed.claims_page import counts, markup
from tfviz.ui.tabs.speed.claims_verdict import HOLDS, NOISY, OPEN, Judgement

KEY = "speed.claims"


def draw(scene: Scene, ask: Mapping[str, Any], measure: bool = False) -> Iterator[Picture]:
    from tfviz.ui.tabs.speed import claims_bench

    counted = claims_bench.exact()
    if scene.kept((KEY, "exact")) is None:
        rows = [one for key, judged in counted.items() for one in claims_bench.records_of(key, judged)]
        scene.keep((KEY, "exact"), True, rows)
    if measure:
        for part in claims_bench.measure(scene, wanted(scene, ask)):
            if part < 1:
                yield shown(scene, counted, part)
        if scene.stop():
            return
    yield shown(scene, counted)


def wanted(scene: Scene, ask: Mapping[str, Any]) -> list[str]:
    """The benches to run: of the row whose button was just pressed; else those without a verdict, or, if all have, all.

    The section's own button asks with the last row's wish too, which then has been met.
    """
    from tfviz.ui.tabs.speed import claims_bench

    claim, click = CLAIMS.get(str(ask.get("claim"))), (KEY, "click", str(ask.get("click"))[:40])
    if claim is not None and claim.bench and scene.kept(click) is None:
        scene.keep(click, True)
        return [claim.bench]
    known = claims_bench.found(scene)
    noisy = {CLAIMS[key].bench for key, one in claims_bench.judge(known).items() if one.verdict == NOISY}
    missing = [name for name in claims_bench.BENCHES if name not in known or known[name].part < 1 or name in noisy]
    return missing or list(claims_bench.BENCHES)


def shown(scene: Scene, counted: Mapping[str, Judgement], part: float | None = None) -> Picture:
    """What is known now."""
    from tfviz.inference.device import describe
    from tfviz.ui.tabs.speed import claims_bench

    t, machine = scene.t, describe(scene.bench.resident.device)
    evidence = claims_bench.found(scene)
    judged = {**counted, **claims_bench.judge(evidence)}
    conditions = {
        key: condition(evidence[one.bench].where, evidence[one.bench].source, t)
        for key, one in CLAIMS.items()
        if one.bench in evidence and key in judged
    }
    where = {"device": machine.name, "threads": machine.threads or 1}
    return picture(judged, conditions, where, t, part)


def condition(where: Mapping[str, str], source: str, t: Translator) -> str:
    """On what, beside the machine; and by whom, if another section measured it."""
    from tfviz.introspection.results import public_name

    shown = {**where, **({"model": public_name(where["model"])} if "model" in where else {})}
    said = [t(f"{KEY}.where.{name}", value=value) for name, value in shown.items() if name != "mask"]
    said += [t(f"{KEY}.where.mask.{where['mask']}")] if "mask" in where else []
    if source:
        said.append(t(f"{KEY}.where.source", section=t(f"{source}.name")))
    return t(f"{KEY}.comma").join(said)


def picture(
    judged: Mapping[str, Judgement],
    conditions: Mapping[str, str],
    where: Mapping[str, object],
    t: Translator,
    part: float | None = None,
) -> Picture:
    """The table; the machine it is about; a badge for what was counted, which must hold on every machine."""
    told = counts(judged)
    waiting = {"ready": told[OPEN], "noisy.ready": told[NOISY]} if part is None else {}
    notes = [t(f"{KEY}.{name}", n=n) for name, n in waiting.items() if n]
    data = {"html": markup(judged, conditions, t)}
    table = Panel(view="claims", data=data, note=t(f"{KEY}.machine", **where), wide=True)
    return Picture([table], badges(judged, t), notes, part)


ALWAYS = ("base", "tying", "unique", "shift", "rows", "causal", "heads", "feed_forward", "noam")  # not a matter of luck


def badges(judged: Mapping[str, Judgement], t: Translator) -> list[Badge]:
    """Arithmetic holds everywhere: if one of these does not, this program is wrong, not the article."""
    wrong = [key for key in ALWAYS if key in judged and judged[key].verdict != HOLDS]
    names = t(f"{KEY}.comma").join(t(f"{KEY}.{key}") for key in wrong)
    return [Badge(not wrong, t(f"{KEY}.badge.wrong" if wrong else f"{KEY}.badge", n=len(ALWAYS), names=names))]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.growth import fit
    from tfviz.ui.tabs.speed import claims_bench, claims_timed, claims_verdict

    return claims_verdict.settled, fit, claims_timed.square_time, claims_timed.flash_speed, claims_bench.measure


SECTION = Section(key=KEY, draw=draw, asks=True, button=f"{KEY}.button", code=code)
