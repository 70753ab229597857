"""Values that a caller sets: what makes no sense is refused with its name, the value and what is allowed."""

import sys
from typing import Any

from tfviz.errors import Phrase, TfvizError

LARGEST = sys.float_info.max


def require(holds: bool, name: str, value: object, allowed: str, **values: object) -> None:
    """`TfvizError` unless it `holds`; `allowed` is the key of the phrase that says what would, with its `values`."""
    if not holds:
        shown = repr(value) if isinstance(value, str) else value  # "9" is not 9
        if isinstance(value, int) and abs(value) > LARGEST:  # Python writes no number of more than 4,300 digits
            shown = "< -1e308" if value < 0 else "> 1e308"
        raise TfvizError("error.value", name=name, value=shown, allowed=Phrase(allowed, values))


def is_number(value: object) -> bool:
    """An int or float that a float can hold, finite; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST  # NaN is not


def is_whole(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def whole(name: str, value: object, low: int) -> None:
    """Refuses all but a whole number, `low` or more."""
    require(is_whole(value, low), name, value, "allowed.whole", low=low)


def at_least(name: str, value: Any, low: float) -> None:
    require(is_number(value) and value >= low, name, value, "allowed.at_least", low=low)


def above(name: str, value: Any, low: float) -> None:
    require(is_number(value) and value > low, name, value, "allowed.above", low=low)


def from_to(name: str, value: Any, low: float, high: float) -> None:
    """Both ends included."""
    require(is_number(value) and low <= value <= high, name, value, "allowed.from_to", low=low, high=high)


def from_below(name: str, value: Any, low: float, high: float) -> None:
    """`low` included, `high` not."""
    require(is_number(value) and low <= value < high, name, value, "allowed.from_below", low=low, high=high)


def divides(name: str, value: int, of: str, n: int) -> None:
    """Refuses a `value` that does not divide `n` (called `of`) evenly."""
    require(n % value == 0, name, value, "allowed.divisor", of=of, n=n)
