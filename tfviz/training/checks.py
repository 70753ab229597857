"""Bounds of the numbers a caller may set, each refused in one sentence: name, value, what is allowed."""

import math

from tfviz.errors import TfvizError

Number = int | float


def at_least(name: str, value: Number, low: Number) -> None:
    """`TfvizError` unless low <= value and value is finite."""
    if not (value >= low and math.isfinite(value)):
        raise TfvizError("error.training.at_least", name=name, value=value, low=low)


def above(name: str, value: Number, low: Number) -> None:
    """`TfvizError` unless low < value and value is finite."""
    if not (value > low and math.isfinite(value)):
        raise TfvizError("error.training.above", name=name, value=value, low=low)


def from_below(name: str, value: Number, low: Number, high: Number) -> None:
    """`TfvizError` unless low <= value < high."""
    if not low <= value < high:
        raise TfvizError("error.training.from_below", name=name, value=value, low=low, high=high)


def from_to(name: str, value: Number, low: Number, high: Number) -> None:
    """`TfvizError` unless low <= value <= high."""
    if not low <= value <= high:
        raise TfvizError("error.training.from_to", name=name, value=value, low=low, high=high)
