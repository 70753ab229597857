"""Where models run, and who may run one now: one heavy call at a time on a device, first come, first served."""

import ctypes
import dataclasses
import importlib
import inspect
import os
import platform
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from threading import Condition
from typing import Any, ParamSpec, TypeVar

import torch

from tfviz.errors import UnsupportedHere
from tfviz.registry import choose

P = ParamSpec("P")
R = TypeVar("R")

DEVICES: dict[str, Callable[[], int]] = {  # name -> how many there are, in the order in which "auto" takes them
    "cuda": lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "mps": lambda: int(torch.backends.mps.is_available()),
    "cpu": lambda: 1,
}


def pick_device(name: str) -> torch.device:
    """`auto` is the first kind in `DEVICES` that is there; otherwise the named one ("cuda", "cuda:1"), if there."""
    if name == "auto":
        return torch.device(next(kind for kind, count in DEVICES.items() if count()))
    kind, _, number = name.partition(":")
    count = choose({"auto": lambda: 1, **DEVICES}, kind, "device")()
    if not (number or "0").isdecimal() or int(number or "0") >= count:
        there = ", ".join(kind for kind, count_of in DEVICES.items() if count_of())
        raise UnsupportedHere("device.not_there", name=name, there=there)
    return torch.device(name)


@dataclass(frozen=True)
class DeviceInfo:
    """What a person is told about a device: `threads` is None where the CPU's threads do not matter."""

    kind: str
    name: str
    threads: int | None


def describe(device: torch.device) -> DeviceInfo:
    if device.type == "cuda":
        return DeviceInfo("cuda", torch.cuda.get_device_name(device), None)
    if device.type == "mps":
        return DeviceInfo("mps", _processor(), None)
    return DeviceInfo("cpu", _processor(), torch.get_num_threads())


def _processor() -> str:
    """The processor's name as its maker writes it, or its architecture where the system does not say."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def set_threads(count: int) -> int:
    """Lets PyTorch use `count` CPU threads (0: leave its own choice) and returns how many it uses now."""
    if count:
        torch.set_num_threads(count)
    return torch.get_num_threads()


@dataclass(frozen=True)
class Turn:
    """The right to use the device, held inside `with gate.turn()`."""

    gate: "DeviceGate"

    def contended(self) -> bool:
        """Whether someone waits, so that a long measurement should end early."""
        return self.gate.waiting_for_people > 0


class DeviceGate:
    """A queue in front of one device. Not re-entrant: who holds a turn must not ask for another."""

    def __init__(self) -> None:
        self._patient: set[object] = set()  # tickets of measurements, which give way and for which nobody gives way
        self._changed = Condition()
        self._queue: deque[object] = deque()  # tickets in order of arrival; the first one is being served

    @property
    def waiting(self) -> int:
        """How many wait, not counting who is being served."""
        return max(0, len(self._queue) - 1)

    @property
    def waiting_for_people(self) -> int:
        with self._changed:
            return sum(ticket not in self._patient for ticket in list(self._queue)[1:])

    @contextmanager
    def turn(self, on_position: Callable[[int], None] | None = None, patient: bool = False) -> Iterator[Turn]:
        """Waits for the device and holds it. `on_position` hears how many are ahead, at first and at every change; 0
        means it is held. Whatever it raises gives up the place in the queue."""
        with self._ticket(patient) as ticket:
            ahead = self._ahead(ticket)
            while True:
                if on_position is not None:
                    on_position(ahead)
                if ahead == 0:
                    break
                ahead = self._next_change(ticket, ahead)
            yield Turn(self)

    @contextmanager
    def line(self) -> Iterator[Callable[[float], int]]:
        """A place in the queue for a caller that has other things to do while it waits: the function waits at most so
        many seconds to be the first, and returns how many are ahead. From 0 on the turn is held, to the block's end."""
        with self._ticket(patient=False) as ticket:

            def ahead(seconds: float) -> int:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue[0] is ticket, timeout=seconds)
                    return self._queue.index(ticket)

            yield ahead

    @contextmanager
    def _ticket(self, patient: bool) -> Iterator[object]:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            if patient:
                self._patient.add(ticket)
        try:
            yield ticket
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._patient.discard(ticket)
                self._changed.notify_all()

    def _ahead(self, ticket: object) -> int:
        with self._changed:
            return self._queue.index(ticket)

    def _next_change(self, ticket: object, ahead: int) -> int:
        """Sleeps until other than `ahead` tickets are before this one, and returns how many."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.index(ticket) != ahead)
            return self._queue.index(ticket)


def give_back_memory() -> None:
    """Returns freed memory to the system, where the C library keeps it for each thread (glibc); takes milliseconds."""
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # not a system whose own symbols can be looked up
        return None


def on_device(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn` as it must be called to reach the accelerator: `spaces.GPU(fn)` on Hugging Face ZeroGPU, elsewhere `fn`.

    There the call runs in a process of its own, so its result is moved to the CPU before it leaves; so is each step of
    a generator function.
    """
    spaces = _zero_gpu()
    if spaces is None:
        return fn
    if inspect.isgeneratorfunction(fn):

        @wraps(fn)
        def steps(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            for step in fn(*args, **kwargs):
                yield to_cpu(step)

        return spaces.GPU(steps)

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return to_cpu(fn(*args, **kwargs))

    return spaces.GPU(call)


def _zero_gpu() -> Any | None:
    """The `spaces` package where it lends a GPU for the length of a call, else None."""
    if os.environ.get("SPACES_ZERO_GPU", "").lower() not in {"1", "true"}:
        return None
    try:
        return importlib.import_module("spaces")
    except ImportError:
        return None


def to_cpu(value: Any) -> Any:
    """`value` with every tensor in it on the CPU, inside dictionaries, lists, tuples and dataclasses as well."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return type(value)((key, to_cpu(item)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(to_cpu, value))
    if isinstance(value, list | tuple):
        return type(value)(map(to_cpu, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_cpu(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **fields)
    return value
