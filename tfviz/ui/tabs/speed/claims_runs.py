"""The benches of the claims, each in short steps, and what other sections have measured that answers the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene
from tfviz.ui.tabs.speed import claims_timed as timed
from tfviz.ui.tabs.speed.claims_evidence import Bench, Evidence, Steps, Trials
from tfviz.ui.tabs.speed.claims_timed import AtLength, StepAt

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.experiments.kernels import KernelPoint

SIZES = (512, 1024, 2048)  # of the kernels
TURN = 3  # rounds of one size, before the next size has its turn
PRODUCTS_N = 2048
LAST_CONTEXT = 256  # of whole decode steps
SEEDS, DISTANCE = 3, 256  # of the gradients
PASS_N = 1024  # tokens of the passes that are timed
KERNELS = ("naive", "flash")
TEXTS = 1  # that quality is judged on
TRIED = ("fp16", "int8", "int8_weights", "int4")
ROOM = 0.5  # of the free memory that a step may take
OURS = "dates"  # a trained model whose weights were never in few bits


def _device(scene: Scene) -> str:
    return str(scene.bench.resident.device)


def _model(scene: Scene) -> str:
    return scene.trace.model if scene.trace is not None else scene.bench.settings.model


def _kernels(scene: Scene) -> Iterator[Evidence]:
    """A few rounds of every size in turn: what else the machine does falls on all sizes and widens their spread."""
    from tfviz.inference.free_memory import free_bytes
    from tfviz.introspection.experiments import kernels

    free, device, where = free_bytes(scene.bench.resident.device), _device(scene), {"mask": "none"}
    every = [kernels.KernelSetting(n, causal=False) for n in SIZES]
    settings = [one for one in every if free is None or kernels.naive_bytes(one) <= ROOM * free]
    seconds: dict[int, dict[str, list[float]]] = {one.n: {} for one in settings}
    while waiting := [one for one in settings if not kernels.enough(seconds[one.n])]:
        for one in waiting:
            kernels.add(seconds[one.n], scene.compute(kernels.time_some, one, device, KERNELS, 0, TURN))
            done = sum(map(kernels.rounds_of, seconds.values())) / (kernels.ROUNDS[1] * len(settings))
            yield Evidence((), where, part=0.8 * done)
            if scene.stop():
                return
    points: list[AtLength] = []
    for one in settings:
        points.append(at_length(scene.compute(kernels.look, one, device, KERNELS, seconds[one.n])))
        yield Evidence(tuple(points), where, part=0.8 + 0.2 * len(points) / len(settings))


def at_length(point: "KernelPoint") -> AtLength:
    took, peak = point.latency, point.peak_bytes
    return AtLength(
        point.setting.n, took["naive"], took["flash"], peak["naive"], peak["flash"], point.max_abs.get("flash")
    )


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
        if sum(one.n >= timed.FITTED_FROM for one in points) >= len(SIZES):
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
