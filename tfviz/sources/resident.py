"""Models stay loaded: one copy of each (model, precision) on the device, shared by every visitor, dropped when others
need the room. A resident model is never changed; a dropped one lives on until the calls that hold it have ended.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from tfviz.config import Settings
from tfviz.errors import ModelUnavailable, Overtaken, UnsupportedHere
from tfviz.inference.device import pick_device, set_threads
from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.registry import choose
from tfviz.sources import wheels
from tfviz.sources.base import LoadedModel
from tfviz.sources.catalog import find_entry
from tfviz.sources.fused_weights import lay_side_by_side
from tfviz.sources.wheels import Progress

logger = logging.getLogger(__name__)
Key = tuple[str, str]
IMPORTING = threading.Lock()  # transformers replaces its own module: a thread beside it may hold the old one


class Resident:
    """Loads on first use, hands out the same object after that, least recently used out first."""

    def __init__(self, settings: Settings, device: torch.device | None = None) -> None:
        self.settings = settings
        self.device = device or pick_device(settings.device)
        set_threads(settings.threads)
        self._models: OrderedDict[Key, LoadedModel] = OrderedDict()
        self._lock = threading.Lock()  # guards the two tables
        self._loading: dict[str, _Load] = {}

    def get(
        self,
        model: str,
        precision: str = "fp32",
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> LoadedModel:
        """The resident model, loaded if it is not there yet.

        `ModelUnavailable` if it cannot be had, `UnsupportedHere` if this device cannot run the precision; either way
        what is resident stays. A load ends by `Overtaken` when `stop()` is true for everyone who waits for it.
        """
        recipe = choose(PRECISIONS, precision, "precision")
        reason = recipe.unsupported(self.device)
        if reason is not None:
            raise UnsupportedHere(reason)
        entry = find_entry(model.strip())
        model = entry.id if entry else model.strip()  # a hub id may be the catalog's under another name
        if self.settings.allow_local and entry is None:
            self._forget_if_changed(model)
        found = self._find((model, precision))
        if found is not None:
            return found
        with self._turn(model, stop) as load:
            found = self._find((model, precision))
            if found is not None:
                return found
            if load.unwanted():
                raise Overtaken
            base = self._find((model, "fp32")) or self._keep(self._load(model, progress, load.unwanted))
            if precision == "fp32":
                return base
            converted = lay_side_by_side(recipe.convert(base.model))
            return self._keep(
                replace(
                    base,
                    precision=precision,
                    model=converted,
                    weight_bytes=weight_bytes(converted),
                    tokenizer_lock=base.tokenizer_lock,
                )
            )

    @contextmanager
    def _turn(self, model: str, stop: Callable[[], bool]) -> Iterator["_Load"]:
        """This caller's turn to load the model; what is known of a load goes when nobody waits for it any more."""
        me = object()
        with self._lock:
            load = self._loading.setdefault(model, _Load())
            load.waiting[me] = stop
        try:
            with load.lock:
                yield load
        finally:
            with self._lock:
                del load.waiting[me]
                if not load.waiting:
                    del self._loading[model]

    def loaded(self) -> list[LoadedModel]:
        """What is resident now, least recently used first."""
        with self._lock:
            return list(self._models.values())

    def _forget_if_changed(self, model: str) -> None:
        """A local checkpoint may have been trained on since: its files are read again when they are newer."""
        version = _version(model)
        with self._lock:
            stale = [
                key for key, kept in self._models.items() if key[0] == model and version not in {"", kept.revision}
            ]
            for key in stale:
                del self._models[key]

    def _find(self, key: Key) -> LoadedModel | None:
        with self._lock:
            if key in self._models:
                self._models.move_to_end(key)
            return self._models.get(key)

    def _keep(self, loaded: LoadedModel) -> LoadedModel:
        with self._lock:
            self._models[loaded.id, loaded.precision] = loaded
            while len(self._models) > 1 and self._bytes() > self.settings.memory_budget:
                self._models.popitem(last=False)
        return loaded

    def _bytes(self) -> int:
        return sum(model.weight_bytes for model in self._models.values())

    def _load(self, model: str, progress: Progress | None, unwanted: Callable[[], bool]) -> LoadedModel:
        with IMPORTING:
            import transformers  # noqa: F401 - slow, so not before a model is wanted
        entry = find_entry(model)
        if entry is not None and entry.ours:
            from tfviz.sources.scratch import load

            return load(entry, self.device)

        def watched(done: int, total: int) -> None:
            if unwanted():
                raise Overtaken
            if progress:
                progress(done, total)

        loaded = self._load_files(model, watched, unwanted)
        if loaded is None:  # what the cache holds is not what was put there: made anew, once
            try:
                loaded = self._load_files(model, watched, unwanted)
            except ModelUnavailable as no_other:
                raise ModelUnavailable("error.weights_damaged", model=model) from no_other
        if loaded is None:
            raise ModelUnavailable("error.weights_damaged", model=model)
        lay_side_by_side(loaded.model)  # before anyone has it
        return loaded

    def _load_files(self, model: str, progress: Progress, unwanted: Callable[[], bool]) -> LoadedModel | None:
        """The model, its files compared with their hashes while they are loaded; None, and the folder is given up,
        where they are not as they were written. A person's own folder is taken as it is, and never touched."""
        from tfviz.sources.huggingface import load_folder
        from tfviz.sources.locate import locate

        located = locate(model, self.settings, progress)
        revision = _version(model) if located.origin == "local" else located.revision
        own = located.origin == "local" and not located.folder.is_relative_to(self.settings.cache)
        loaded = refused = None
        with ThreadPoolExecutor(1) as beside:
            unchanged = beside.submit(lambda: own or wheels.unchanged(located.folder))
            try:
                loaded = load_folder(
                    located.folder, model_id=model, revision=revision, device=self.device, unwanted=unwanted
                )
            except ModelUnavailable as error:
                refused = error
        if not unchanged.result():
            logger.warning("%s is not what was written there", located.folder)
            wheels.give_up(located.folder)
            return None
        if refused is not None:
            raise refused
        return loaded


class _Load:
    """One load of a model at a time, and everyone who waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[object, Callable[[], bool]] = {}

    def unwanted(self) -> bool:
        return all(stop() for stop in list(self.waiting.values()))


def _version(model: str) -> str:
    """When a local checkpoint was last written; empty for models that have a revision."""
    path = Path(model).expanduser()
    try:
        files = [path, *path.glob("*.safetensors"), *path.glob("*.json")] if path.is_absolute() or path.exists() else []
        return f"local, {max(file.stat().st_mtime_ns for file in files)}" if files else ""
    except (OSError, ValueError):
        return ""
