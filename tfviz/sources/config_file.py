"""The config.json of a hub id or a local folder, and nothing else of the model: a few kilobytes, no weights."""

import json
import logging
import os
from pathlib import Path

from tfviz.config import Settings
from tfviz.errors import ModelUnavailable
from tfviz.sources.cache_config import LONGEST
from tfviz.sources.locate import HUB_ID, HUB_SECONDS, LONGEST_HUB_ID, LONGEST_PATH, _is_path, _pairs, _shown

NAME = "config.json"
log = logging.getLogger(__name__)


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
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        return Path(hf_hub_download(repo, NAME, local_files_only=True))
    except LocalEntryNotFoundError:
        pass  # not there yet
    try:
        ahead = hf_hub_download(repo, NAME, dry_run=True, etag_timeout=HUB_SECONDS)
        if (ahead.file_size or 0) > 4 * LONGEST:
            raise ModelUnavailable("error.no_config", model=repo)
        return Path(hf_hub_download(repo, NAME, etag_timeout=HUB_SECONDS))
    except GatedRepoError:
        raise ModelUnavailable("error.gated", model=repo) from None
    except RepositoryNotFoundError:
        raise ModelUnavailable("error.not_found", model=repo) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as failure:
        log.warning("hub: %s: %s", repo, failure)
        raise ModelUnavailable("speed.memory.error.hub", model=repo) from None
    except EntryNotFoundError:
        raise ModelUnavailable("error.no_config", model=repo) from None
    except (HfHubHTTPError, HTTPError) as failure:
        log.warning("hub: %s: %s", repo, failure)
        raise ModelUnavailable("speed.memory.error.hub", model=repo) from None


def _read(path: Path, model: str) -> str:
    """Its text, if it is one and no longer than a config is; JSON is checked by whoever reads it."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
        json.loads(text)
    except (OSError, ValueError, RecursionError) as damage:
        raise ModelUnavailable("error.no_config", model=_shown(model)) from damage
    return text
