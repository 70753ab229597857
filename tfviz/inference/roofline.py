"""The roofline of this machine: what a model's operations should take, from limits measured on other operands.

    seconds = c + max(FLOPs / F, bytes / B)          c: of one call,  F: FLOP/s,  B: B/s

A bare roof has one F and one B and is far off. Here F is that of the product's rows m and the size of its matrix; B is
what is left when as many bytes have passed through the caches as pass in the model between two uses of a weight; and c
is that of the very operator after as many others as run in the model between two runs of it, so that its code is as
cold: small models are all c. Each is read off probes: small calls on random operands of their own with the model's
kernel (dtype, layout, library); none is fitted to a model.

Williams, Waterman, Patterson 2009, https://doi.org/10.1145/1498765.1498785
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, exp, log

from tfviz.inference.measure import Latency

NOTHING = 16  # a size at which the call is all that costs
ROWS = (1, 8, 32, 128, 512)  # m of the probed products
SIDES = (32, 96, 320, 1024)  # k = n of their matrices
STREAMED = (320, 1024, 2048)  # k = n of those that one row is multiplied with while they lie far away
PASSED = (0, 2**20, 2**23, 2**26)  # bytes that pass through the caches before a call
LITTLE = 2**14  # so few of them drive no code out
LENGTHS = (NOTHING, 32, 128, 512)  # queries and keys of the probed attentions
DIMS = (8, 32, 64, 128)  # features of their heads
PROBED_HEADS = 8
PROBED_DIM = 64  # features of a head, where few queries meet many keys
ELEMENTS = (2**12, 2**15, 2**18)  # of the probed elementwise operations
OTHERS = 20  # operators of other kinds that run before a timed call
PEAK_ROWS, PEAK_SIDE = 512, 1024  # the probe that stands for a dtype's flat roof
READ = (2**20, 2**22, 2**24, 2**26, 2**28)  # working sets of plain reading
DTYPES = ("fp32", "fp16", "bf16", "int8")
ELEMENTWISE = ("pass", "reduce", "curve")


@dataclass(frozen=True)
class Route:
    """Which kernel computes it."""

    op: str = ""  # products: linear | int_mm | int8pack | int4pack; attention: full | causal | masked; else its name
    dtype: str = "fp32"  # of the activations
    by_columns: bool = False  # the weight [out, in] lies column by column
    onednn: bool = True  # the library may be asked
    bias: bool = False


@dataclass(frozen=True)
class Operation:
    """`count` calls of one kind and size.

    product    rows m, inner k, outer n          attention  rows: queries, inner: keys, outer: features of a head
    pass | reduce | curve   inner: elements      view       no work at all
    """

    kind: str
    route: Route
    rows: int
    inner: int
    outer: int
    flops: int  # of one call, as are the bytes
    nbytes: int  # read and written
    weights: int = 0  # of them, of weights
    count: int = 1


@dataclass(frozen=True)
class Part:
    """One part of a model in one phase."""

    phase: str  # prefill | decode
    side: str  # self | encoder | decoder
    name: str  # projections | attention | feed_forward | head | other
    operations: tuple[Operation, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.phase, self.side, self.name

    @property
    def flops(self) -> int:
        return sum(one.flops * one.count for one in self.operations)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes * one.count for one in self.operations)

    @property
    def calls(self) -> int:
        return sum(one.count for one in self.operations)

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flops / max(self.nbytes, 1)


@dataclass(frozen=True)
class Probe:
    """One synthetic call: an operation's kind and size, after `passed` bytes of something else."""

    kind: str  # an operation's, or "read"
    route: Route = Route()
    rows: int = 1
    inner: int = NOTHING
    outer: int = NOTHING
    passed: int = 0
    again: bool = False  # the same call ran just before those bytes


@dataclass(frozen=True)
class Pass:
    """All that runs in one pass: so much of it lies between two uses of a weight, or two runs of a kernel."""

    nbytes: int
    calls: Mapping[tuple[str, Route], int]

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "Pass":
        calls: Counter[tuple[str, Route]] = Counter()
        nbytes = 0
        for part in parts:
            nbytes += part.nbytes
            for one in part.operations:
                calls[one.kind, one.route] += one.count
        return cls(nbytes, calls)

    def others(self, one: Operation) -> float:
        """Operators from one run of this operation's kernel to the next."""
        return sum(self.calls.values()) / self.calls[one.kind, one.route]

    def passed(self, one: Operation) -> float:
        """Bytes from one run of this operation's kernel to the next."""
        return self.nbytes / self.calls[one.kind, one.route]


@dataclass(frozen=True)
class Roofs:
    """Seconds a call of each probe on this device. Lower quartiles count: what else a machine does only adds."""

    device: str
    threads: int | None
    times: Mapping[Probe, Latency] = field(default_factory=dict)

    def of(self, probe: Probe) -> float:
        return self.times[probe].low

    def bandwidth(self, nbytes: float) -> float:
        """B/s of plain reading, in a working set of so many bytes."""
        return between(nbytes, {one.inner: one.inner / self.of(one) for one in read_probes() if one in self.times})

    def peak(self, dtype: str) -> float | None:
        """A dtype's highest throughput, FLOP/s: 2 m k n over the seconds of its probe."""
        probe = peak_probe(dtype)
        return 2 * PEAK_ROWS * PEAK_SIDE**2 / self.of(probe) if probe in self.times else None


# ---- which probes


def read_probes() -> list[Probe]:
    return [Probe("read", inner=nbytes) for nbytes in READ]


def peak_probe(dtype: str) -> Probe:
    route = Route("int_mm" if dtype == "int8" else "linear", dtype)
    return Probe("product", route, PEAK_ROWS, PEAK_SIDE, PEAK_SIDE)


def machine_probes() -> list[Probe]:
    """What the roof is drawn from, whatever the model."""
    return [*read_probes(), *map(peak_probe, DTYPES)]


def probes(operations: Iterable[Operation]) -> list[Probe]:
    """Those that these operations' predictions read; the same for every model that uses the same kernels."""
    found: dict[Probe, None] = {}
    for kind, route in dict.fromkeys((one.kind, one.route) for one in operations):
        found.update(dict.fromkeys(_probes_of(kind, route)))
    return list(found)


def _probes_of(kind: str, route: Route) -> Iterator[Probe]:
    yield _nothing(kind, route)
    yield from (Probe(kind, route, passed=passed, again=True) for passed in PASSED[:-1])
    if kind == "product":
        yield from (Probe(kind, route, m, side, side) for m in ROWS for side in SIDES)
        yield from (Probe(kind, route, 1, side, side, passed) for side in STREAMED for passed in PASSED)
    elif kind == "attention":
        yield from (Probe(kind, route, n, n, dim) for n in LENGTHS for dim in DIMS)
        yield from (Probe(kind, route, 1, n, PROBED_DIM, passed) for n in LENGTHS for passed in PASSED)
    elif kind in ELEMENTWISE:
        any_of = Route(dtype=route.dtype)
        yield _nothing(kind, any_of)
        yield from (Probe(kind, any_of, 1, n, passed=passed) for n in ELEMENTS for passed in PASSED[:-1])


def _nothing(kind: str, route: Route) -> Probe:
    return Probe(kind, route)


# ---- predicting


@dataclass(frozen=True)
class Prediction:
    """Seconds, and what each limit asks for by itself."""

    overhead: float
    compute: float
    memory: float
    seconds: float

    @property
    def bound(self) -> str:
        """What asks for most: memory | compute | overhead."""
        limits = {"memory": self.memory, "compute": self.compute, "overhead": self.overhead}
        return max(limits, key=lambda name: limits[name])


def predict(part: Part, roofs: Roofs, whole: Pass) -> Prediction:
    """Of a part of the pass `whole`."""
    found = [(one.count, predict_operation(one, roofs, whole)) for one in part.operations]
    names = ("overhead", "compute", "memory", "seconds")
    return Prediction(*(sum(count * getattr(one, name) for count, one in found) for name in names))


def predict_operation(one: Operation, roofs: Roofs, whole: Pass) -> Prediction:
    """c + max(FLOPs / F, bytes / B) of one call in the pass `whole`."""
    overhead, passing = call_seconds(one, roofs, whole), whole.nbytes
    compute = memory = 0.0
    if one.kind == "product":
        compute = one.flops / product_throughput(one, roofs)
        memory = one.weights / streaming(one, roofs, passing)
    elif one.kind == "attention" and 4 * one.rows >= one.inner:
        compute = one.flops / attention_throughput(one, roofs)
    elif one.kind == "attention":
        memory = keys_seconds(one, roofs, passing)
    elif one.kind == "curve":
        compute = one.inner / elements_throughput(one, roofs, passing / one.count)
    elif one.kind in ELEMENTWISE:
        memory = one.inner / elements_throughput(one, roofs, passing / one.count)
    return Prediction(overhead, compute, memory, overhead + max(compute, memory))


def call_seconds(one: Operation, roofs: Roofs, whole: Pass) -> float:
    """c: a call of this very operator that computes next to nothing, so many bytes and others after the last of it."""
    warm = {max(n, LITTLE): roofs.of(Probe(one.kind, one.route, passed=n, again=True)) for n in PASSED[:-1]}
    cold = roofs.of(_nothing(one.kind, one.route))
    return between(whole.others(one), {1: between(whole.passed(one), warm), OTHERS: cold})


def product_throughput(one: Operation, roofs: Roofs) -> float:
    """F(m, k n), FLOP/s with operands in the caches."""
    by_rows = {}
    for m in ROWS:
        sized = {side**2: 2 * m * side**2 / _beyond(roofs, Probe(one.kind, one.route, m, side, side)) for side in SIDES}
        by_rows[m] = between(one.inner * one.outer, sized)
    return between(one.rows, by_rows)


def streaming(one: Operation, roofs: Roofs, passed: float) -> float:
    """B(k n, passed), B/s at which one row meets a matrix that was last used so many bytes ago."""
    by_passed = {}
    for n in PASSED:
        sized = {}
        for side in STREAMED:
            seconds = _beyond(roofs, Probe(one.kind, one.route, 1, side, side, n))
            sized[side**2] = weight_bytes(one.route, side, side) / seconds
        by_passed[n] = between(one.inner * one.outer, sized)
    return between(passed, by_passed)


def attention_throughput(one: Operation, roofs: Roofs) -> float:
    """F of as many queries as keys, by the number of keys and the features of a head."""
    by_keys = {}
    for n in LENGTHS:
        by_dim = {}
        for dim in DIMS:
            by_dim[dim] = 4 * PROBED_HEADS * n * n * dim / _beyond(roofs, Probe(one.kind, one.route, n, n, dim))
        by_keys[n] = between(one.outer, by_dim)
    return between(one.inner, by_keys)


def keys_seconds(one: Operation, roofs: Roofs, passed: float) -> float:
    """Of few queries whose keys and values were last used so many bytes ago; threads share the heads."""
    by_passed = {}
    for n in PASSED:
        found = {keys: keys / _beyond(roofs, Probe(one.kind, one.route, 1, keys, PROBED_DIM, n)) for keys in LENGTHS}
        by_passed[n] = between(one.inner, found)  # keys a second, of all probed heads
    heads = one.flops / (4 * one.rows * one.inner * one.outer)
    share = ceil(heads / (roofs.threads or 1)) / ceil(PROBED_HEADS / (roofs.threads or 1))
    return one.inner / between(passed, by_passed) * share * one.outer / PROBED_DIM


def elements_throughput(one: Operation, roofs: Roofs, passed: float) -> float:
    """Elements a second: the operand has just been written, the room of the result was last used so many bytes ago."""
    any_of, by_passed = Route(dtype=one.route.dtype), {}
    for at in PASSED[:-1]:
        probed = {n: n / _beyond(roofs, Probe(one.kind, any_of, 1, n, passed=at)) for n in ELEMENTS}
        by_passed[at] = between(one.inner, probed)
    return between(passed, by_passed)


def _beyond(roofs: Roofs, probe: Probe) -> float:
    """What a probe takes beyond the call itself; never less than a tenth of it, whatever the noise."""
    took, nothing = roofs.of(probe), roofs.of(_nothing(probe.kind, probe.route))
    return max(took - nothing, took / 10)


def weight_bytes(route: Route, inner: int, outer: int) -> int:
    """Bytes of one weight [outer, inner] as the route's kernel reads it."""
    if route.op == "int4pack":
        return inner * outer // 2 + (inner // 32) * outer * 4  # two levels a byte; scale and middle of 32, BF16
    return inner * outer * (1 if route.op in {"int_mm", "int8pack"} else 4 if route.dtype == "fp32" else 2)


def between(x: float, points: Mapping[int, float]) -> float:
    """Straight lines on logarithmic axes (0 counts as 1); beyond the ends the value at the end."""
    known = sorted(points)
    if x <= known[0]:
        return points[known[0]]
    for low, high in zip(known, known[1:], strict=False):
        if x <= high:
            share = log(x / max(low, 1)) / log(high / max(low, 1)) if x > 1 else 0.0
            return exp(log(points[low]) * (1 - share) + log(points[high]) * share)
    return points[known[-1]]
