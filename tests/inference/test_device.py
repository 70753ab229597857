"""Devices: choosing one, the queue in front of it, and the wrapper for Hugging Face ZeroGPU (by a stand-in package)."""

import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from types import ModuleType

import pytest
import torch

from tfviz.errors import UnknownChoice, UnsupportedHere
from tfviz.inference import device as device_module
from tfviz.inference.device import DeviceGate, Turn, describe, on_device, pick_device, set_threads, to_cpu

PATIENCE = 120  # seconds before a waiting test gives up


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def there(**counts: int) -> None:
        table = {kind: partial(counts.get, kind, 0) for kind in device_module.DEVICES}
        monkeypatch.setattr(device_module, "DEVICES", table)

    return there


@pytest.mark.parametrize(
    "counts, expected", [(dict(cuda=1, cpu=1), "cuda"), (dict(mps=1, cpu=1), "mps"), (dict(cpu=1), "cpu")]
)
def test_auto_takes_the_fastest_kind_that_is_there(devices: Callable, counts: dict, expected: str) -> None:
    devices(**counts)
    assert pick_device("auto") == torch.device(expected)


def test_a_named_device_is_taken_as_named(devices: Callable) -> None:
    devices(cuda=2, cpu=1)
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["mps", "cuda:2", "cuda:x"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(devices: Callable, name: str) -> None:
    devices(cuda=2, cpu=1)
    with pytest.raises(UnsupportedHere) as caught:
        pick_device(name)
    assert name in str(caught.value) and "cuda, cpu" in str(caught.value)
    assert name in caught.value.in_language("zh")


def test_an_unknown_device_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(UnknownChoice, match="auto, cuda, mps, cpu"):
        pick_device("tpu")


def test_the_cpu_is_described_by_its_name_and_threads() -> None:
    told = describe(torch.device("cpu"))
    assert told.kind == "cpu" and told.name and told.threads == torch.get_num_threads()


def test_threads_are_set_and_zero_leaves_them() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(1) == torch.get_num_threads() == 1
        assert set_threads(0) == 1
    finally:
        torch.set_num_threads(before)


class Visitor:
    """A thread that takes a turn at the gate, says when it holds it, and keeps it until told to leave."""

    def __init__(self, gate: DeviceGate, served: list[str], name: str) -> None:
        self.gate, self.served, self.name = gate, served, name
        self.positions: list[int] = []
        self.queued, self.holding, self.leave = Event(), Event(), Event()
        self.heard = [Event() for _ in range(4)]
        self.thread = Thread(target=self._visit)
        self.thread.start()
        assert self.queued.wait(PATIENCE)

    def _heard(self, position: int) -> None:
        self.positions.append(position)
        self.heard[position].set()
        self.queued.set()

    def _visit(self) -> None:
        with self.gate.turn(self._heard):
            self.served.append(self.name)
            self.holding.set()
            assert self.leave.wait(PATIENCE)

    def finish(self) -> None:
        assert self.holding.wait(PATIENCE)
        self.leave.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def test_turns_are_taken_in_order_of_arrival_one_at_a_time() -> None:
    gate, served = DeviceGate(), list[str]()
    visitors = [Visitor(gate, served, name) for name in "abcd"]
    for number, visitor in enumerate(visitors):
        assert visitor.holding.wait(PATIENCE)
        assert served == list("abcd"[: number + 1])
        assert gate.waiting == 3 - number
        visitor.finish()
    assert gate.waiting == 0


def test_a_visitor_hears_its_place_shrink_to_zero() -> None:
    gate, served = DeviceGate(), list[str]()
    visitors = [Visitor(gate, served, name) for name in "abc"]
    visitors[0].finish()
    assert visitors[2].heard[1].wait(PATIENCE)
    visitors[1].finish()
    visitors[2].finish()
    assert [visitor.positions for visitor in visitors] == [[0], [1, 0], [2, 1, 0]]


def test_a_turn_knows_whether_someone_waits() -> None:
    gate = DeviceGate()
    with gate.turn() as turn:
        assert isinstance(turn, Turn) and not turn.contended()
        visitor = Visitor(gate, [], "next")
        assert turn.contended()
    visitor.finish()


def test_an_error_inside_a_turn_frees_the_device() -> None:
    gate = DeviceGate()
    with pytest.raises(ZeroDivisionError), gate.turn():
        _ = 1 / 0
    with gate.turn() as turn:
        assert not turn.contended()


def test_who_gives_up_while_waiting_leaves_the_queue() -> None:
    gate = DeviceGate()

    def give_up(position: int) -> None:
        raise TimeoutError(position)

    with gate.turn() as turn:
        with pytest.raises(TimeoutError), gate.turn(give_up):
            pass
        assert not turn.contended()


@dataclass(frozen=True)
class Result:
    tensor: torch.Tensor
    name: str


class OnGpu(torch.Tensor):
    """A tensor that claims to lie elsewhere until `.cpu()` is called, for want of a second device."""

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def on_gpu() -> torch.Tensor:
    return torch.ones(2).as_subclass(OnGpu)


@pytest.fixture
def zero_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    """A stand-in for `spaces` on ZeroGPU; returns the functions that were handed to it."""
    lent: list[Callable] = []
    spaces = ModuleType("spaces")
    spaces.GPU = lambda fn: lent.append(fn) or fn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    return lent


def test_elsewhere_the_function_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    assert on_device(on_gpu) is on_gpu


def test_zero_gpu_without_its_package_leaves_the_function_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    monkeypatch.setitem(sys.modules, "spaces", None)
    assert on_device(on_gpu) is on_gpu


def test_on_zero_gpu_the_call_is_lent_and_its_result_comes_home(zero_gpu: list[Callable]) -> None:
    def call(name: str) -> Result:
        return Result(on_gpu(), name)

    lent = on_device(call)
    assert zero_gpu == [lent] and lent.__name__ == "call"
    result = lent("x")
    assert result.name == "x" and type(result.tensor) is torch.Tensor


def test_on_zero_gpu_every_step_of_a_generator_comes_home(zero_gpu: list[Callable]) -> None:
    def steps() -> Iterator[torch.Tensor]:
        yield on_gpu()
        yield on_gpu()

    assert [type(step) for step in on_device(steps)()] == [torch.Tensor] * 2


def test_tensors_come_home_from_every_container() -> None:
    Pair = namedtuple("Pair", "left right")
    value = {"list": [on_gpu()], "tuple": (on_gpu(), 1), "pair": Pair(on_gpu(), "b"), "record": Result(on_gpu(), "c")}
    home = to_cpu(value)
    tensors = [home["list"][0], home["tuple"][0], home["pair"].left, home["record"].tensor]
    assert [type(tensor) for tensor in tensors] == [torch.Tensor] * 4
    assert (home["tuple"][1], home["pair"].right, home["record"].name) == (1, "b", "c")


def test_two_measurements_do_not_give_way_to_each_other_but_both_do_to_a_person() -> None:
    gate, asked = DeviceGate(), Event()
    seen: list[bool] = []

    def wait(patient: bool) -> Thread:
        def stand() -> None:
            with gate.turn(lambda ahead: asked.set(), patient=patient):
                pass

        thread = Thread(target=stand)
        thread.start()
        asked.wait(PATIENCE)
        asked.clear()
        return thread

    with gate.turn(patient=True) as turn:
        threads = [wait(patient=True)]
        seen.append(turn.contended())
        threads.append(wait(patient=False))
        seen.append(turn.contended())
    for thread in threads:
        thread.join(PATIENCE)
    assert seen == [False, True]
