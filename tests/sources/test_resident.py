"""Resident models: loaded once, shared by all, dropped when the room is needed, never changed."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import save
from tests.conftest import Checkpoint
from tfviz.config import Settings
from tfviz.errors import ModelUnavailable, Overtaken, UnknownChoice, UnsupportedHere
from tfviz.inference.precision import PRECISIONS
from tfviz.model.attention_call import AttentionCall
from tfviz.sources import huggingface, wheels
from tfviz.sources.base import LoadedModel
from tfviz.sources.catalog import CATALOG, CatalogEntry
from tfviz.sources.resident import Resident

TEXT = "the cat saw the door"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the models that were really loaded."""
    ids: list[str] = []
    load, one_at_a_time = huggingface.load_folder, threading.Lock()

    def counting(*args: object, model_id: str, **options: object) -> LoadedModel:
        ids.append(model_id)
        with one_at_a_time:
            return load(*args, model_id=model_id, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(huggingface, "load_folder", counting)
    return ids


@pytest.fixture
def path(checkpoint: Checkpoint) -> Callable[[str], str]:
    return lambda name: str(checkpoint(name))


def with_room_for(settings: Settings, *models: LoadedModel) -> Resident:
    return Resident(replace(settings, memory_budget=sum(model.weight_bytes for model in models)))


def names(resident: Resident) -> list[tuple[str, str]]:
    return [(model.label, model.precision) for model in resident.loaded()]


def test_the_same_object_is_handed_out_every_time(
    settings: Settings, path: Callable[[str], str], loads: list[str]
) -> None:
    resident = Resident(settings)
    first = resident.get(path("gpt2"))
    assert resident.get(f"  {path('gpt2')} ") is first and resident.get(path("gpt2"), "fp32") is first
    assert loads == [path("gpt2")]


def test_the_least_recently_used_model_makes_room(settings: Settings, path: Callable[[str], str]) -> None:
    roomy = Resident(settings)
    gpt2, llama, bert = (roomy.get(path(name)) for name in ("gpt2", "llama", "bert"))
    resident = with_room_for(settings, llama, llama, gpt2)
    for name in ("gpt2", "llama", "gpt2"):
        resident.get(path(name))
    assert names(resident) == [("llama", "fp32"), ("gpt2", "fp32")]
    resident = with_room_for(settings, gpt2, llama)
    for name in ("gpt2", "llama", "gpt2", "bert"):
        resident.get(path(name))
        assert sum(model.weight_bytes for model in resident.loaded()) <= resident.settings.memory_budget
    assert ("llama", "fp32") not in names(resident) and names(resident)[-1] == ("bert", "fp32")


def test_a_model_above_the_budget_is_kept_alone(settings: Settings, path: Callable[[str], str]) -> None:
    resident = Resident(replace(settings, memory_budget=1))
    resident.get(path("gpt2"))
    resident.get(path("llama"))
    assert names(resident) == [("llama", "fp32")]


def test_a_dropped_model_still_serves_who_holds_it(
    settings: Settings, path: Callable[[str], str], loads: list[str]
) -> None:
    resident = Resident(replace(settings, memory_budget=1))
    held = resident.get(path("gpt2"))
    before = held.forward(held.prompt(TEXT), AttentionCall())
    resident.get(path("llama"))
    assert names(resident) == [("llama", "fp32")]
    assert torch.equal(held.forward(held.prompt(TEXT), AttentionCall()), before)
    assert resident.get(path("gpt2")) is not held and loads.count(path("gpt2")) == 2


def test_many_who_ask_at_once_load_once(settings: Settings, path: Callable[[str], str], loads: list[str]) -> None:
    resident = Resident(settings)
    start = threading.Barrier(8, timeout=30)

    def visitor(number: int) -> LoadedModel:
        start.wait()
        return resident.get(path(["bert", "llama"][number % 2]), ["fp32", "int8"][number // 4])

    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(visitor, range(8)))
    assert sorted(loads) == sorted([path("bert"), path("llama")])
    assert len({id(model) for model in models}) == 4
    assert all(model.precision == ["fp32", "int8"][number // 4] for number, model in enumerate(models))


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "bert"])
@pytest.mark.parametrize("precision", [key for key in PRECISIONS if key != "fp32"])
def test_a_variant_is_made_from_the_resident_model_and_never_changes_it(
    name: str, precision: str, settings: Settings, path: Callable[[str], str], loads: list[str]
) -> None:
    resident = Resident(settings)
    base = resident.get(path(name))
    before = {key: tensor.clone() for key, tensor in base.model.state_dict().items()}
    prompt = base.prompt(TEXT, TEXT if base.family == "encoder-decoder" else None)
    output = base.forward(prompt, AttentionCall())
    variant = resident.get(path(name), precision)
    variant.forward(prompt, AttentionCall())
    assert loads == [path(name)] and variant is not base and variant.model is not base.model
    assert (variant.precision, base.precision) == (precision, "fp32")
    assert variant.tokenizer is base.tokenizer and variant.tokenizer_lock is base.tokenizer_lock
    after = base.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) and before[key].dtype == after[key].dtype for key in before)
    assert torch.equal(base.forward(prompt, AttentionCall()), output)
    assert variant.weight_bytes < base.weight_bytes
    assert resident.get(path(name), precision) is variant and resident.get(path(name)) is base


def test_a_variant_asked_for_first_brings_its_base_along(
    settings: Settings, path: Callable[[str], str], loads: list[str]
) -> None:
    resident = Resident(settings)
    resident.get(path("llama"), "bf16")
    assert names(resident) == [("llama", "fp32"), ("llama", "bf16")]
    resident.get(path("llama"), "fp32")
    assert loads == [path("llama")]


def test_an_unknown_precision_is_answered_with_the_known_ones(
    settings: Settings, path: Callable[[str], str], loads: list[str]
) -> None:
    with pytest.raises(UnknownChoice, match="“int3”.*fp32, fp16, bf16, int8"):
        Resident(settings).get(path("llama"), "int3")
    assert loads == []


def test_a_precision_the_device_cannot_run_is_refused_before_loading(settings: Settings, loads: list[str]) -> None:
    resident = Resident(settings, device=torch.device("mps"))
    with pytest.raises(UnsupportedHere, match="INT8"):
        resident.get("anything", "int8")
    assert loads == []


@pytest.mark.parametrize("entry", [entry for entry in CATALOG.values() if entry.ours], ids=lambda entry: entry.id)
def test_the_models_that_come_with_tfviz_load_whatever_the_limit(entry: CatalogEntry, settings: Settings) -> None:
    """The limit is for models that are typed in: what whoever runs the server has installed is that person's choice."""
    assert Resident(replace(settings, max_params=1)).get(entry.id).n_parameters == entry.parameters


@pytest.fixture
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """(set once the weights are being read, set it to let the reading go on)."""
    from transformers import PreTrainedModel

    read = PreTrainedModel._load_pretrained_model
    reading, let_go = threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> Any:
        reading.set()
        assert let_go.wait(60)
        return read(*args, **options)

    monkeypatch.setattr(PreTrainedModel, "_load_pretrained_model", staticmethod(slowly))
    yield reading, let_go
    let_go.set()


def test_a_load_that_nobody_waits_for_any_more_ends(
    settings: Settings, path: Callable[[str], str], slow_reading: tuple[threading.Event, threading.Event]
) -> None:
    reading, let_go = slow_reading
    resident, closed = Resident(settings), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(resident.get, path("llama"), stop=closed.is_set)
        assert reading.wait(60)
        closed.set()
        let_go.set()
        with pytest.raises(Overtaken):
            page.result()
    assert resident.loaded() == [] and resident.get(path("llama")).has_logits


def test_a_load_goes_on_for_whoever_else_waits_for_it(
    settings: Settings,
    path: Callable[[str], str],
    loads: list[str],
    slow_reading: tuple[threading.Event, threading.Event],
) -> None:
    reading, let_go = slow_reading
    resident, closed = Resident(settings), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        page = pool.submit(resident.get, path("llama"), stop=closed.is_set)
        assert reading.wait(60)
        other = pool.submit(resident.get, path("llama"))
        while len(resident._loading[path("llama")].waiting) < 2:
            time.sleep(0.001)
        closed.set()
        let_go.set()
        assert page.result() is other.result()
    assert len(loads) == 1


def converted(settings: Settings, tmp_path: Path) -> tuple[str, Path]:
    """(a GGUF file, the weights made from it in the cache)."""
    from gguf import GGMLQuantizationType

    from tests.sources.test_gguf_reader import tiny_llama, write_gguf
    from tfviz.sources.locate import locate

    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), GGMLQuantizationType.F32)
    asked = str(tmp_path / "tiny.gguf")
    return asked, locate(asked, settings).folder / "model.safetensors"


def test_weights_that_changed_in_the_cache_are_made_anew(settings: Settings, tmp_path: Path) -> None:
    asked, weights = converted(settings, tmp_path)
    whole = weights.read_bytes()
    damaged = bytearray(whole)
    damaged[-1] ^= 0x80  # the sign of one number
    weights.write_bytes(damaged)
    assert Resident(settings).get(asked).has_logits
    assert weights.read_bytes() == whole


def test_a_folder_of_ones_own_is_never_touched(settings: Settings, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "mine")
    (folder / "model.safetensors").rename(tmp_path / ("a" * 64))
    (folder / "model.safetensors").symlink_to(tmp_path / ("a" * 64))
    (folder / wheels.MANIFEST).write_text("something else")
    assert Resident(settings).get(str(folder)).has_logits
    assert (folder / wheels.MANIFEST).read_text() == "something else"


def test_weights_that_changed_and_cannot_be_had_again_are_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, weights = converted(settings, tmp_path)
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 0x80
    weights.write_bytes(damaged)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheels, "_replace", full)
    resident = Resident(settings)
    with pytest.raises(ModelUnavailable) as refused:
        resident.get(asked)
    assert refused.value.key == "error.weights_damaged" and resident.loaded() == []


def test_a_local_checkpoint_that_was_trained_on_is_read_again(settings: Settings, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "mine", seed=0)
    resident = Resident(settings)
    old = resident.get(str(folder))
    resident.get(str(folder), "int8")
    assert resident.get(str(folder)) is old
    save("llama", folder, seed=1)
    new = resident.get(str(folder))
    assert new is not old and new.revision != old.revision
    assert [kept.precision for kept in resident.loaded()] == ["fp32"]
