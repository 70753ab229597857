"""How the claims are measured: each bench in short steps, what it found kept after every one; what others have measured
already on this machine is used where it answers the same question.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene
from tfviz.ui.tabs.speed import claims_rules as rules
from tfviz.ui.tabs.speed import claims_timed as timed
from tfviz.ui.tabs.speed.claims_evidence import Evidence, Steps, Trials
from tfviz.ui.tabs.speed.claims_runs import BENCHES, DISTANCE, PASS_N, PRODUCTS_N, SIZES
from tfviz.ui.tabs.speed.claims_timed import AtLength
from tfviz.ui.tabs.speed.claims_verdict import Judgement

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.records import Record

KEY = "speed.claims"


def found(scene: Scene) -> dict[str, Evidence]:
    """What there is of every bench: measured here, or else by another section."""
    known = {}
    for name, bench in BENCHES.items():
        evidence = scene.kept((KEY, name, bench.key(scene))) or bench.lend(scene)
        if evidence is not None:
            known[name] = evidence
    return known


def measure(scene: Scene, names: Sequence[str]) -> Iterator[float]:
    """Runs these benches one after another and keeps what they find; yields the share that is done."""
    whole, done = sum(BENCHES[name].seconds for name in names), 0.0
    for name in names:
        bench = BENCHES[name]
        before = scene.kept((KEY, name, bench.key(scene)))
        for evidence in _watched(bench.run(scene)):
            if before is None or before.part < 1 or evidence.part == 1:  # a stop leaves what was found whole before
                keep(scene, name, evidence)
            yield (done + bench.seconds * evidence.part) / whole
            if scene.stop():
                return
        done += bench.seconds


def _watched(run: Iterator[Evidence]) -> Iterator[Evidence]:
    """With how much other work held the steps up; what the page draws between them does not count."""
    from tfviz.inference.contention import Contention

    contention = Contention()
    while True:
        with contention.watched():
            evidence = next(run, None)
        if evidence is None:
            return
        yield replace(evidence, held_up=contention.share)


def keep(scene: Scene, name: str, evidence: Evidence) -> None:
    records = [one for key, judged in judge({name: evidence}).items() for one in records_of(key, judged, evidence)]
    scene.keep((KEY, name, BENCHES[name].key(scene)), evidence, records)


def records_of(claim: str, judged: Judgement, evidence: Evidence | None = None) -> "list[Record]":
    from tfviz.inference.records import Record, now

    setting = {"claim": claim, "verdict": judged.verdict, **({} if evidence is None else evidence.where)}
    units = {"x": "1", "share": "1", "n": "1", "power": "1"}
    return [
        Record(
            KEY.split(".")[1],
            setting,
            name,
            one.value,
            units.get(one.unit, one.unit),
            one.low,
            one.high,
            one.runs,
            now(),
        )
        for name, one in judged.figures.items()
    ]


# ---- from evidence to verdicts


def judge(evidence: Mapping[str, Evidence]) -> dict[str, Judgement]:
    """The verdicts that this evidence allows, by claim."""
    from tfviz.inference.precision import PRECISIONS

    labels = {key: one.label for key, one in PRECISIONS.items()}
    judged: dict[str, Judgement] = {}
    for name, one in evidence.items():
        found = JUDGES[name](one.value, labels)
        judged |= {key: timed.undisturbed(key, said, one.held_up) for key, said in found.items() if said is not None}
    return judged


def _of_kernels(points: Sequence[AtLength], labels: Mapping[str, str]) -> dict[str, Judgement | None]:
    if sum(one.n >= timed.FITTED_FROM for one in points) < len(SIZES):
        return {}  # an exponent of two points is none
    names = ("square_time", "square_memory", "flash_speed", "flash_memory", "flash_equal")
    return {name: getattr(timed, name)(points) for name in names}


def _of_cache(steps: Steps, labels: Mapping[str, str]) -> dict[str, Judgement | None]:
    enough = len(steps.attention) >= 3
    return {"kv_cache": timed.kv_cache(steps.attention, steps.whole)} if enough else {}


def _of_precision(trials: Trials, labels: Mapping[str, str]) -> dict[str, Judgement | None]:
    points = trials.trial.points
    forms = {"fp16": ("fp16",), "int8": ("int8", "int8_weights"), "int4": ("int4",)}
    asked = {"fp16": (0.5, 1.5), "int8": (0.75, 2.0), "int4": (0.875, 3.0)}
    judged: dict[str, Judgement | None] = {"losses": timed.losses(points, trials.rounded_before)}
    for name, (saved, times) in asked.items():
        judged[f"{name}_memory"] = timed.memory(points, forms[name], saved, labels)
        judged[f"{name}_speed"] = timed.speed(points, forms[name], times, labels)
    return judged


JUDGES: dict[str, Callable[[Any, Mapping[str, str]], dict[str, Judgement | None]]] = {
    "kernels": _of_kernels,
    "start": lambda found, labels: {"identity": rules.identity(**found)},
    "products": lambda found, labels: {"bottleneck": timed.bottleneck(**found, n=PRODUCTS_N)},
    "cache": _of_cache,
    "precision": _of_precision,
    "quantisation": lambda found, labels: {"after_training": timed.after_training(found)},
    "gradients": lambda found, labels: {"path": rules.path(found, DISTANCE)},
    "times": lambda found, labels: {"parallel": timed.parallel(found, PASS_N)},
}


@cache
def exact() -> dict[str, Judgement]:
    """The claims that need no button: counted on modules without weights, or drawn in a few milliseconds."""
    from tfviz.introspection.experiments import claims
    from tfviz.training.experiments import claims as of_training
    from tfviz.training.experiments.tying import count

    sizes = {name: sum(getattr(count("paper-base"), name).values()) for name in ("separate", "tied")}
    weights = claims.weights()
    return {
        "base": rules.base(claims.base()),
        "tying": rules.tying(**sizes, vocabulary=claims.PAPER.vocab_size, d_model=claims.PAPER.d_model),
        "embedding": rules.embedding(claims.embedding()),
        "unique": rules.unique(claims.unique()),
        "shift": rules.shift(claims.shift()),
        "variance": rules.variance(claims.variance()),
        "rows": rules.rows(weights),
        "causal": rules.causal(weights),
        "heads": rules.heads(claims.heads()),
        "feed_forward": rules.feed_forward(claims.feed_forward()),
        "noam": rules.noam(of_training.rates()),
        "smoothing": rules.smoothing(of_training.smoothing()),
        "clipping": rules.clipping(of_training.clipped()),
        "dropout": rules.dropout(of_training.dropped()),
        "masking": rules.masking(claims.masking()),
    }
