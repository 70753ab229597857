"""The learning rate by step: up while the model is still random, then down.

    lr = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

Source: Vaswani et al. 2017, section 5.3, https://arxiv.org/abs/1706.03762
"""

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
    """One schedule with its numbers: `schedule(step)` is the learning rate of that step, counted from 1."""

    d_model: int
    warmup_steps: int
    scale: float = 1.0  # times the whole curve
    decay: tuple[int, int] | None = None  # first and last step of a linear decay to 0; None: none
    name: str = "noam"  # key of SCHEDULES

    def __post_init__(self) -> None:
        choose(SCHEDULES, self.name, "schedule")
        at_least("d_model", self.d_model, 1)
        at_least("warmup_steps", self.warmup_steps, 1)
        above("scale", self.scale, 0)
        if self.decay is not None:
            linear_decay(0, *self.decay)

    def __call__(self, step: int) -> float:
        rate = self.scale * SCHEDULES[self.name](step, self.d_model, self.warmup_steps)
        return rate if self.decay is None else rate * linear_decay(step, *self.decay)


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {"noam": noam_lr}  # (step, d_model, warmup_steps) -> rate
