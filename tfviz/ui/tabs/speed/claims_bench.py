"""How the claims are measured: each bench in short steps, what it found kept after every one; what others have measured
already on this machine is used where it answers the same question.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene
from tfviz.ui.tabs.speed import claims_rules as rules
from tfviz.ui.tabs.speed.claims_rules import AtLength, Judgement, StepAt

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.records import Record
    from tfviz.introspection.experiments.kernels import KernelPoint
    from tfviz.introspection.precision_trial import Trial

KEY = "speed.claims"
SIZES = (512, 1024, 2048)  # of the kernels
PRODUCTS_N = 2048
LAST_CONTEXT = 256  # of whole decode steps
SEEDS, DISTANCE = 3, 256  # of the gradients
PASS_N = 1024  # tokens of the passes that are timed
KERNELS = ("naive", "flash")
TEXTS = 1  # that quality is judged on
TRIED = ("fp16", "int8", "int8_weights", "int4")
ROOM = 0.5  # of the free memory that a step may take
OURS = "dates"  # a trained model whose weights were never in few bits


@dataclass(frozen=True)
class Evidence:
    """What one bench found so far. `source`: the section that measured it; "": this one. `where`: its conditions."""

    value: Any
    where: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    part: float = 1.0


@dataclass(frozen=True)
class Bench:
    """`run` yields what it has after every step; `lend` is what another section found; `key` is what it depends on."""

    seconds: float  # about how long, for the progress bar
    run: Callable[[Scene], Iterator[Evidence]]
    lend: Callable[[Scene], Evidence | None] = lambda scene: None
    key: Callable[[Scene], Hashable] = lambda scene: ""


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
        for evidence in bench.run(scene):
            keep(scene, name, evidence)
            yield (done + bench.seconds * evidence.part) / whole
            if scene.stop():
                return
        done += bench.seconds


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
    judged: dict[str, Judgement | None] = {}
    for name, one in evidence.items():
        judged |= JUDGES[name](one.value, labels)
    return {key: one for key, one in judged.items() if one is not None}


def _of_kernels(points: Sequence[AtLength], labels: Mapping[str, str]) -> dict[str, Judgement | None]:
    if sum(one.n >= rules.FITTED_FROM for one in points) < len(SIZES):
        return {}  # an exponent of two points is none
    names = ("square_time", "square_memory", "flash_speed", "flash_memory", "flash_equal")
    return {name: getattr(rules, name)(points) for name in names}


@dataclass(frozen=True)
class Steps:
    """Of attention alone, and of a whole model."""

    attention: tuple[StepAt, ...] = ()
    whole: tuple[StepAt, ...] = ()


def _of_cache(steps: Steps, labels: Mapping[str, str]) -> dict[str, Judgement | None]:
    enough = len(steps.attention) >= 2
    return {"kv_cache": rules.kv_cache(steps.attention, steps.whole)} if enough else {}


@dataclass(frozen=True)
class Trials:
    """`rounded_before`: the weights were in four bits before they were loaded."""

    trial: "Trial"
    rounded_before: bool


def _of_precision(trials: Trials, labels: Mapping[str, str]) -> dict[str, Judgement | None]:
    points = trials.trial.points
    forms = {"fp16": ("fp16",), "int8": ("int8", "int8_weights"), "int4": ("int4",)}
    asked = {"fp16": (0.5, 1.5), "int8": (0.75, 2.0), "int4": (0.875, 3.0)}
    judged: dict[str, Judgement | None] = {"losses": rules.losses(points, trials.rounded_before)}
    for name, (saved, times) in asked.items():
        judged[f"{name}_memory"] = rules.memory(points, forms[name], saved, labels)
        judged[f"{name}_speed"] = rules.speed(points, forms[name], times, labels)
    return judged


JUDGES: dict[str, Callable[[Any, Mapping[str, str]], dict[str, Judgement | None]]] = {
    "kernels": _of_kernels,
    "start": lambda found, labels: {"identity": rules.identity(**found)},
    "products": lambda found, labels: {"bottleneck": rules.bottleneck(**found, n=PRODUCTS_N)},
    "cache": _of_cache,
    "precision": _of_precision,
    "quantisation": lambda found, labels: {"after_training": rules.after_training(found)},
    "gradients": lambda found, labels: {"path": rules.path(found, DISTANCE)},
    "times": lambda found, labels: {"parallel": rules.parallel(found, PASS_N)},
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


# ---- the benches


def _device(scene: Scene) -> str:
    return str(scene.bench.resident.device)


def _model(scene: Scene) -> str:
    return scene.trace.model if scene.trace is not None else scene.bench.settings.model


def _kernels(scene: Scene) -> Iterator[Evidence]:
    from tfviz.introspection.experiments import kernels
    from tfviz.introspection.precision_trial import free_bytes

    free = free_bytes(scene.bench.resident.device)
    points: list[AtLength] = []
    costs = [n**2 for n in SIZES]
    for i, n in enumerate(SIZES):
        setting = kernels.KernelSetting(n, causal=False)
        if free is not None and kernels.naive_bytes(setting) > ROOM * free:
            break
        seconds: dict[str, list[float]] = {}
        while not kernels.enough(seconds):
            some = scene.compute(kernels.time_some, setting, _device(scene), KERNELS, kernels.rounds_of(seconds))
            kernels.add(seconds, some)
            yield Evidence(tuple(points), {"mask": "none"}, part=_share(costs, i, 0.8))
            if scene.stop():
                return
        points.append(at_length(scene.compute(kernels.look, setting, _device(scene), KERNELS, seconds)))
        yield Evidence(tuple(points), {"mask": "none"}, part=_share(costs, i, 1.0))


def at_length(point: "KernelPoint") -> AtLength:
    took, peak = point.latency, point.peak_bytes
    return AtLength(
        point.setting.n, took["naive"], took["flash"], peak["naive"], peak["flash"], point.max_abs.get("flash")
    )


def _share(costs: Sequence[float], i: int, of_this: float) -> float:
    return (sum(costs[:i]) + of_this * costs[i]) / sum(costs)


def _start(scene: Scene) -> Iterator[Evidence]:
    from tfviz.introspection.experiments.claims import start

    yield Evidence(scene.compute(start))


def _products(scene: Scene) -> Iterator[Evidence]:
    from tfviz.introspection.experiments.claims import products

    yield Evidence(scene.compute(products, PRODUCTS_N, _device(scene)))


def _cache(scene: Scene) -> Iterator[Evidence]:
    """Attention alone; then whole steps of the model on the page, if it writes."""
    from tfviz.introspection.experiments import claims

    steps = Steps(whole=_known_steps(scene))
    for i, n in enumerate(claims.LENGTHS, start=1):
        took = scene.compute(claims.attention_step, n, _device(scene))
        steps = replace(steps, attention=(*steps.attention, StepAt(n, took["cached"], took["uncached"])))
        yield Evidence(steps, _model_of(scene, steps), part=0.5 * i / len(claims.LENGTHS))
    if not steps.whole:
        for whole, part in _whole_steps(scene):
            steps = replace(steps, whole=whole)
            yield Evidence(steps, _model_of(scene, steps), part=0.5 + 0.5 * part)
    yield Evidence(steps, _model_of(scene, steps))


def _model_of(scene: Scene, steps: Steps) -> dict[str, str]:
    return {"model": _model(scene)} if steps.whole else {}


def _known_steps(scene: Scene) -> tuple[StepAt, ...]:
    """What the KV cache tab has measured of this sentence."""
    sweep = scene.bench.recall(scene.trace_id, "cache.cost") if scene.trace is not None else None
    return () if sweep is None else _as_steps(sweep.points)


def _as_steps(points: Sequence[Any]) -> tuple[StepAt, ...]:
    return tuple(StepAt(one.n, one.cached, one.uncached) for one in points)


def _whole_steps(scene: Scene) -> Iterator[tuple[tuple[StepAt, ...], float]]:
    from tfviz.errors import WrongModel
    from tfviz.introspection import cache_cost

    if scene.trace is None:
        return
    try:
        ahead = scene.examine(cache_cost.prospect)
    except WrongModel:  # it writes nothing
        return
    last = max((n for n in ahead.lengths if n <= LAST_CONTEXT), default=0)
    for sweep in scene.stream(partial(cache_cost.sweep, kernel="flash", shape=ahead.shape)):
        done = _as_steps(sweep.points)
        yield done, min(1.0, sum(one.n for one in done) / sum(n for n in ahead.lengths if n <= last))
        if done and done[-1].n >= last:
            return


def _precision(scene: Scene) -> Iterator[Evidence]:
    from tfviz.inference.precision import PRECISIONS
    from tfviz.introspection.precision_trial import trial

    resident, model = scene.bench.resident, _model(scene)
    able = [one for one in TRIED if PRECISIONS[one].unsupported(resident.device) is None]
    rounded = scene.compute(_rounded_before, resident.get(model))
    get = partial(resident.get, model)
    for one in trial(get, _texts(scene), able, scene.compute, scene.stop):
        yield Evidence(Trials(one, rounded), {"model": model}, part=one.part)


def _texts(scene: Scene) -> Sequence[str]:
    """Our prose; for a model that reads something else its examples."""
    from tfviz.ui.examples import examples
    from tfviz.ui.tabs.speed.precision import prose

    own = examples(_model(scene))
    usual = scene.trace is None or scene.trace.family != "encoder-decoder" or own == examples("")
    return (prose("evaluation") if usual else own)[:TEXTS]


@lru_cache(maxsize=8)
def _rounded_before(loaded: Any) -> bool:
    """Whether the first large matrix holds so few different values in each group as only four bits can leave."""
    from tfviz.inference.quantisation.schemes import bits_already
    from tfviz.introspection.layer_calls import is_linear

    matrix = next((one.weight for one in loaded.model.modules() if is_linear(one)), None)
    return matrix is not None and bits_already(matrix.detach().float().cpu()) is not None


def _quantisation(scene: Scene) -> Iterator[Evidence]:
    from tfviz.introspection.experiments.claims import rounding

    found: list[Any] = []
    for bits in (8, 4):
        found += scene.compute(rounding, scene.bench.resident.get(OURS), (bits,))
        yield Evidence(tuple(found), {"model": OURS}, part=len(found) / 6)


def _gradients(scene: Scene) -> Iterator[Evidence]:
    from tfviz.introspection.experiments import recurrent

    every: dict[str, list[Any]] = {}
    for seed in range(SEEDS):
        one = scene.compute(recurrent.gradients, recurrent.RecurrentSetting(), DISTANCE, seed)
        for kind in recurrent.TIMED:
            every.setdefault(kind, []).append(one[kind])
        yield Evidence(_farthest(every), part=(seed + 1) / SEEDS)


def _farthest(every: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """The median over seeds at the longest distance, relative to distance 1."""
    import numpy as np

    from tfviz.introspection.experiments.recurrent import relative_quartiles

    return {kind: float(relative_quartiles(np.array(rows))[1, -1]) for kind, rows in every.items()}


def _times(scene: Scene) -> Iterator[Evidence]:
    from tfviz.introspection.experiments.recurrent import RecurrentSetting, times

    yield Evidence(scene.compute(times, PASS_N, RecurrentSetting(), True, _device(scene)))


# ---- what other sections have measured


def _recurrent(scene: Scene) -> Any:
    from tfviz.introspection.experiments.recurrent import RecurrentSetting

    return scene.kept(("speed.recurrent", RecurrentSetting(), DISTANCE))


def _lent_gradients(scene: Scene) -> Evidence | None:
    from tfviz.introspection.experiments.recurrent import TIMED

    finding = _recurrent(scene)
    if finding is None or not finding.seeds:
        return None
    return Evidence(
        {kind: value for kind, value in finding.farthest().items() if kind in TIMED}, source="speed.recurrent"
    )


def _lent_times(scene: Scene) -> Evidence | None:
    finding = _recurrent(scene)
    took = None if finding is None else finding.times.get("backward", {}).get(PASS_N)
    return None if took is None else Evidence(dict(took), source="speed.recurrent")


def _lent_kernels(scene: Scene) -> Evidence | None:
    """A sweep at the usual widths in FP32, forward, without a mask or with the causal one."""
    from tfviz.introspection.experiments.kernels import KernelSetting
    from tfviz.ui.tabs.speed.kernels import kept_key

    for mask, causal in (("none", False), ("causal", True)):
        sweep = scene.kept(kept_key(KernelSetting(0, causal=causal), KERNELS, _device(scene)))
        points = tuple(at_length(one) for one in sweep.points if set(KERNELS) <= one.latency.keys()) if sweep else ()
        if sum(one.n >= rules.FITTED_FROM for one in points) >= len(SIZES):
            return Evidence(points, {"mask": mask}, source="speed.kernels")
    return None


def _lent_trial(scene: Scene) -> Evidence | None:
    if scene.trace is None:
        return None
    trial = scene.kept(("speed.precision", scene.trace.model, scene.trace.revision))
    if trial is None or len(trial.points) < 2:
        return None
    before = _rounded_before(scene.bench.resident.get(scene.trace.model))
    return Evidence(Trials(trial, before), {"model": scene.trace.model}, source="speed.precision")


BENCHES = {
    "kernels": Bench(8, _kernels, _lent_kernels),
    "start": Bench(0.3, _start),
    "products": Bench(1.5, _products),
    "cache": Bench(8, _cache, key=_model),
    "precision": Bench(25, _precision, _lent_trial, key=_model),
    "quantisation": Bench(1, _quantisation),
    "gradients": Bench(1.5, _gradients, _lent_gradients),
    "times": Bench(1.5, _times, _lent_times),
}
