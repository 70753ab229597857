"""The config.json of a hub id or a local folder, and nothing else of the model: a few kilobytes, no weights."""

import json
import os
from pathlib import Path

from tfviz.config import Settings
from tfviz.errors import ModelUnavailable
from tfviz.sources import hub
from tfviz.sources.locate import HUB_ID, LONGEST_HUB_ID, LONGEST_PATH, _is_path, _pairs, _shown
from tfviz.sources.pasted_config import LONGEST

NAME = "config.json"
LONGEST_FILE = 4 * LONGEST  # bytes: a letter has up to four


def config_text(model: str, settings: Settings) -> str:
    """By the rules that loading follows: local paths where they are allowed, hub ids where those are; the Hugging Face
    cache first. `ModelUnavailable` in one sentence."""
    model = model.strip()
    if not model or len(model) > LONGEST_PATH or not model.isprintable():
        raise ModelUnavailable("error.odd_id", model=_shown(model))
    if _is_path(model, settings):
        return _read(_local(model, settings), model)
    if not HUB_ID.fullmatch(model) or len(model) > LONGEST_HUB_ID or {"..", "--"} & _pairs(model):
        raise ModelUnavailable("error.odd_id", model=_shown(model))
    if settings.allow_hub is not None and model not in settings.allow_hub:
        raise ModelUnavailable("error.hub_not_allowed", model=model)
    return _read(fetched(model), model)


def _local(model: str, settings: Settings) -> Path:
    if not settings.allow_local:
        raise ModelUnavailable("error.local_not_allowed", model=_shown(model))
    path = Path(os.path.abspath(os.path.expanduser(model)))
    if not path.exists():
        raise ModelUnavailable("error.path_missing", model=_shown(model))
    return path if path.name == NAME else path / NAME


def fetched(repo: str) -> Path:
    """From the Hugging Face cache, else from the hub; a file that is too large for a config is not downloaded."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, NAME, local_files_only=True))
    except LocalEntryNotFoundError:
        pass  # not there yet
    with hub.in_sentences(repo, "speed.memory.error.hub"):
        sizes = {file.rfilename: file.size or 0 for file in hub.repository(repo).siblings or []}
        if sizes.get(NAME, LONGEST_FILE + 1) > LONGEST_FILE:
            raise ModelUnavailable("error.no_config", model=repo)
        return Path(hf_hub_download(repo, NAME, etag_timeout=hub.HUB_SECONDS))


def _read(path: Path, model: str) -> str:
    """Its text, if it is one and no longer than a config is; JSON is checked by whoever reads it."""
    if not path.is_file():  # opening a pipe would wait for whoever writes to it
        raise ModelUnavailable("error.no_config", model=_shown(model))
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(LONGEST + 1)
        json.loads(text)
    except (OSError, ValueError, RecursionError) as damage:
        raise ModelUnavailable("error.no_config", model=_shown(model)) from damage
    return text
