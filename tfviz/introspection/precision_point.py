"""What one precision costs and spoils on one model, beside FP32; all that a trial has found; and its flat records."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tfviz.errors import TfvizError
from tfviz.inference.measure import Latency
from tfviz.inference.records import Record, Setting, latency_record, now

BASE = "fp32"


@dataclass(frozen=True, eq=False)
class PrecisionPoint:
    """One precision of one model on this machine. Its speeds stand beside FP32's, timed in turns with all of them."""

    precision: str
    weight_bytes: int
    peak_bytes: int  # of a prefill, beyond the weights
    prefill: Latency
    decode: Latency | None  # seconds a token; None: the model does not write
    prefill_beside: Latency  # FP32's, as its own row shows it
    decode_beside: Latency | None
    perplexity: float | None = None  # None: the model does not predict the next token
    kl: float | None = None  # nats a position; None: no output head
    top1: float | None = None
    cosine: float | None = None  # of the last hidden states, where there is no head
    weight_error: float | None = None  # |W - W as held| / |W| over some layers
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)  # kind -> mean TV [layer, head], 0..1
    read: int = 0  # positions that quality was judged on so far

    @property
    def prefill_speed(self) -> float:
        """Times FP32's."""
        return self.prefill_beside.median / self.prefill.median

    @property
    def decode_speed(self) -> float | None:
        beside = self.decode_beside
        return None if self.decode is None or beside is None else beside.median / self.decode.median

    @property
    def map_divergence(self) -> np.ndarray | None:
        """[layer, head] of the first kind."""
        return next(iter(self.maps.values()), None)


@dataclass(frozen=True, eq=False)
class Trial:
    """What was found so far, by precision, and what is being done."""

    points: Mapping[str, PrecisionPoint] = field(default_factory=dict)
    failed: Mapping[str, TfvizError] = field(default_factory=dict)  # what this model or machine could not do
    prefill_tokens: int = 0
    part: float = 0.0  # of the steps
    doing: tuple[str, str] = ("prepare", BASE)  # prepare | measure | compare, and the precision


def records(found: Trial, model: str) -> list[Record]:
    """Every figure as a flat row."""
    return [one for point in found.points.values() for one in _records(point, model, found.prefill_tokens)]


def _records(point: PrecisionPoint, model: str, n: int) -> Iterator[Record]:
    setting: dict[str, Setting] = {"model": model, "precision": point.precision}
    yield latency_record("precision", {**setting, "phase": "prefill", "n": n}, point.prefill)
    if point.decode is not None:
        yield latency_record("precision", {**setting, "phase": "decode", "n": n}, point.decode)
        took = point.decode
        rate, low, high = (1 / one for one in (took.median, took.high, took.low))
        where = {**setting, "n": n}
        yield Record("precision", where, "tokens_per_second", rate, "token/s", low, high, took.runs, now())
        yield Record("precision", setting, "decode_speedup", float(point.decode_speed or 0), "1", at=now())
    yield Record("precision", setting, "prefill_speedup", point.prefill_speed, "1", at=now())
    units: dict[str, str] = {"weight_error": "1"}
    units |= {"weight_bytes": "B", "peak_bytes": "B", "perplexity": "1", "kl": "nat", "top1": "1", "cosine": "1"}
    for name, unit in units.items():
        value = getattr(point, name)
        if value is not None:
            yield Record("precision", setting, name, float(value), unit, at=now())
    for kind, each in point.maps.items():
        yield Record("precision", {**setting, "kind": kind}, "map_tv", float(np.nanmean(each)), "1", at=now())
