"""What a bench of the claims is, and what it finds."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene
from tfviz.ui.tabs.speed.claims_timed import StepAt

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.precision_point import Trial


@dataclass(frozen=True)
class Evidence:
    """What one bench found so far. `source`: the section that measured it; "": this one. `where`: its conditions."""

    value: Any
    where: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    part: float = 1.0
    held_up: float = 0.0  # share of the time for which other work on the machine held it up


@dataclass(frozen=True)
class Bench:
    """`run` yields what it has after every step; `lend` is what another section found; `key` is what it depends on."""

    seconds: float  # about how long, for the progress bar
    run: Callable[[Scene], Iterator[Evidence]]
    lend: Callable[[Scene], Evidence | None] = lambda scene: None
    key: Callable[[Scene], Hashable] = lambda scene: ""


@dataclass(frozen=True)
class Steps:
    """Of attention alone, and of a whole model."""

    attention: tuple[StepAt, ...] = ()
    whole: tuple[StepAt, ...] = ()


@dataclass(frozen=True)
class Trials:
    """`rounded_before`: the weights were in four bits before they were loaded."""

    trial: "Trial"
    rounded_before: bool
