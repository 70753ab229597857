"""What tests share: tiny checkpoints and the models loaded from them, made once a session; settings; no hub."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tfviz.config import Settings

if TYPE_CHECKING:
    from tfviz.sources.base import LoadedModel

Checkpoint = Callable[[str], Path]
Loaded = Callable[[str], "LoadedModel"]


@pytest.fixture(autouse=True)
def no_hub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests ask no hub, unless they bring their own (`hub_cache`); as HF_HUB_OFFLINE=1 does."""
    if "hub_cache" in request.fixturenames or "e2e" in request.path.parts:
        return
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The defaults, with a cache of the test's own."""
    defaults = Settings.from_environment({})
    return replace(defaults, cache=tmp_path / "cache", device="cpu", allow_local=True)


@pytest.fixture(scope="session")
def quiet_transformers() -> Iterator[None]:
    """transformers warns about tiny configs; what tests need to see are the failures."""
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    yield
    transformers_logging.set_verbosity(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, quiet_transformers: None) -> Checkpoint:
    """`checkpoint("llama")` is the folder of a tiny random Llama; the names are those of tests/checkpoints.py."""
    from tests.checkpoints import save

    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda name: save(name, folder / name))


@pytest.fixture(scope="session")
def loaded(checkpoint: Checkpoint) -> Loaded:
    """`loaded("llama")` is that folder's model, loaded as a person's folder is. Nobody may change it."""
    import torch

    from tfviz.sources.huggingface import load_folder

    def load(name: str) -> "LoadedModel":
        return load_folder(checkpoint(name), model_id=name, revision="local", device=torch.device("cpu"))

    return cache(load)
