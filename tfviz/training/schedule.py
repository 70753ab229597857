"""The learning rate by step: up while the model is still random, then down.

    lr = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

Source: Vaswani et al. 2017, section 5.3, https://arxiv.org/abs/1706.03762
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tfviz.checks import above, at_least
from tfviz.registry import choose


def noam_lr(step: int, d_model: int = 512, warmup_steps: int = 4000) -> float:
    """The article's rate for `step`, counted from 1: linear up to step `warmup_steps`, then falling as 1 / sqrt(step).

    Step 0 is before the first update and has rate 0. A run shorter than its warm-up never reaches the peak.
    `TfvizError` for a negative step and for a `d_model` or `warmup_steps` below 1.
    """
    at_least("step", step, 0)
    at_least("d_model", d_model, 1)
    at_least("warmup_steps", warmup_steps, 1)
    if step == 0:
        return 0.0
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def linear_decay(step: int, start: int, end: int) -> float:
    """A factor: 1 up to step `start`, then falling linearly to 0 at step `end`; `TfvizError` if end < start."""
    at_least("start", start, 0)
    at_least("end", end, start)
    if step <= start:
        return 1.0
    return max(0.0, (end - step) / (end - start)) if end > start else 0.0


@dataclass(frozen=True)
class Schedule:
    """One schedule with its numbers: `schedule(step)` is the learning rate of that step, counted from 1.

    All but Noam reach `peak` when the warm-up ends; None is the peak of Noam, so that curves can be compared. Those
    that come down to 0 need `total_steps` to know when. `TfvizError` for what makes no curve.
    """

    d_model: int
    warmup_steps: int  # 0: none, where the schedule does not divide by it (Noam and inverse_sqrt do)
    scale: float = 1.0  # times the whole curve
    decay: tuple[int, int] | None = None  # first and last step of a linear decay to 0 on top; None: none
    name: str = "noam"  # key of SCHEDULES
    total_steps: int | None = None
    peak: float | None = None

    def __post_init__(self) -> None:
        choose(SCHEDULES, self.name, "schedule")
        at_least("d_model", self.d_model, 1)
        at_least("warmup_steps", self.warmup_steps, 1 if self.name in DIVIDE_BY_WARMUP else 0)
        above("scale", self.scale, 0)
        if self.name in NEED_AN_END or self.total_steps is not None:
            at_least("total_steps", self.total_steps, 1)
        if self.peak is not None:
            above("peak", self.peak, 0)
        if self.decay is not None:
            linear_decay(0, *self.decay)

    def __call__(self, step: int) -> float:
        at_least("step", step, 0)
        rate = self.scale * SCHEDULES[self.name](step, self) if step else 0.0
        return rate if self.decay is None else rate * linear_decay(step, *self.decay)

    @property
    def highest(self) -> float:
        """The rate at the end of the warm-up, before `scale`."""
        end = max(self.warmup_steps, 1)
        return noam_lr(end, self.d_model, end) if self.peak is None else self.peak

    def risen(self, step: int) -> float:
        """The share of the warm-up that is done, 0 to 1."""
        return min(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0

    def left(self, step: int) -> float:
        """The share of the steps after the warm-up that is still to come, 1 to 0."""
        assert self.total_steps is not None
        after = self.total_steps - self.warmup_steps
        return 1.0 if step <= self.warmup_steps else max(0.0, (self.total_steps - step) / after) if after > 0 else 0.0


def noam(step: int, s: Schedule) -> float:
    return noam_lr(step, s.d_model, s.warmup_steps)


def constant(step: int, s: Schedule) -> float:
    return s.highest * s.risen(step)


def linear(step: int, s: Schedule) -> float:
    return s.highest * s.risen(step) * s.left(step)


def cosine(step: int, s: Schedule) -> float:
    """Half a cosine from the peak to 0: https://arxiv.org/abs/1608.03983"""
    return s.highest * s.risen(step) * (1 - math.cos(math.pi * s.left(step))) / 2


def inverse_sqrt(step: int, s: Schedule) -> float:
    """Noam's shape with a peak of one's own: T5, https://arxiv.org/abs/1910.10683"""
    return s.highest * min(s.risen(step), (s.warmup_steps / step) ** 0.5)


def wsd(step: int, s: Schedule) -> float:
    """Warm-up, stable, then a short decay over the last fifth: https://arxiv.org/abs/2404.06395"""
    return s.highest * s.risen(step) * min(1.0, s.left(step) / WSD_DECAY)


WSD_DECAY = 0.2
DIVIDE_BY_WARMUP, NEED_AN_END = {"noam", "inverse_sqrt"}, {"linear", "cosine", "wsd"}
SCHEDULES: dict[str, Callable[[int, Schedule], float]] = {
    "noam": noam,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
    "wsd": wsd,
    "constant": constant,
}
