"""Contention: what threads have waited is counted inside the watched blocks only, and nothing where nobody counts."""

from pathlib import Path

import pytest
import torch

from tfviz.inference import contention
from tfviz.inference.contention import Contention, waited


def counted(folder: Path, *nanoseconds: int) -> None:
    for i, one in enumerate(nanoseconds):
        (folder / str(i)).mkdir(exist_ok=True)
        (folder / str(i) / "schedstat").write_text(f"5 {one} 7\n")


def test_waiting_counts_inside_the_watched_blocks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "TASKS", tmp_path)
    clock = iter([0.0, 2.0, 10.0, 12.0])
    monkeypatch.setattr(contention.time, "perf_counter", lambda: next(clock))
    counted(tmp_path, 10**9, 2 * 10**9)
    assert waited() == 3
    seen = Contention()
    with seen.watched():
        counted(tmp_path, 2 * 10**9, 3 * 10**9)
    counted(tmp_path, 9 * 10**9, 9 * 10**9)
    with seen.watched():
        counted(tmp_path, 9 * 10**9, 8 * 10**9)  # never less than nothing
    assert (seen.waited, seen.seconds) == (2, 4)
    assert seen.share == pytest.approx(2 / (4 * torch.get_num_threads()))


def test_a_machine_that_does_not_count_is_taken_for_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "TASKS", tmp_path / "none")
    assert waited() == 0 == Contention().share
    monkeypatch.setattr(contention, "TASKS", tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("not here")
    assert waited() == 0
