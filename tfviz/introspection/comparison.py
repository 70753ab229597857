"""The same figures of two machines side by side: which rows belong together, and where it is better.

ratio = here / there        gain = ratio where more is better, 1 / ratio where less is
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tfviz.inference.records import Record

MORE_IS_BETTER = {"token/s": True, "FLOP/s": True, "B/s": True, "s": False, "s/token": False, "B": False, "nat": False}
MORE_OF_ONE = {  # of plain numbers, by the end of the quantity's name; of all others neither is better
    "accuracy": True,
    "top1": True,
    "cosine": True,
    "speedup": True,
    "max_abs": False,
    "error": False,
    "map_tv": False,
    "kl": False,
    "perplexity": False,
}
FOUND = {"backend", "verdict"}  # in a setting, but what a machine answered and not what it was asked


def more_is_better(quantity: str, unit: str) -> bool | None:
    """None: more of it is neither better nor worse (an exponent, a shape)."""
    if unit in MORE_IS_BETTER:
        return MORE_IS_BETTER[unit]
    return next((more for end, more in MORE_OF_ONE.items() if quantity.endswith(end)), None)


@dataclass(frozen=True)
class Match:
    """The same figure of two machines."""

    here: Record
    there: Record

    @property
    def ratio(self) -> float | None:
        """here / there; None where that says nothing (zero, or a negative number)."""
        found = self.here.value / self.there.value if self.here.value > 0 and self.there.value > 0 else 0.0
        return found if 1e-300 < found < 1e300 else None

    @property
    def gain(self) -> float | None:
        """How many times better it is here; below 1: better there. None where neither is better."""
        more = more_is_better(self.here.quantity, self.here.unit)
        return None if self.ratio is None or more is None else self.ratio if more else 1 / self.ratio


@dataclass(frozen=True)
class Comparison:
    matched: tuple[Match, ...]  # in the order of `here`
    only_here: tuple[Record, ...]
    only_there: tuple[Record, ...]


def compare(here: Sequence[Record], there: Sequence[Record]) -> Comparison:
    """Rows with the same experiment, setting, quantity and unit; of several alike the last one counts."""
    ours, theirs = ({_key(one): one for one in records} for records in (here, there))
    return Comparison(
        tuple(Match(one, theirs[key]) for key, one in ours.items() if key in theirs),
        tuple(one for key, one in ours.items() if key not in theirs),
        tuple(one for key, one in theirs.items() if key not in ours),
    )


def _key(one: Record) -> tuple[object, ...]:
    given = ((name, value) for name, value in one.setting.items() if name not in FOUND)
    setting = frozenset((name, isinstance(value, bool), value) for name, value in given)
    return one.experiment, setting, one.quantity, one.unit
