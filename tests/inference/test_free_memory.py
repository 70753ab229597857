"""How much memory is free: the system's word, and a container's limit where that is less."""

from pathlib import Path

import pytest
import torch

from tfviz.inference.free_memory import free_bytes

CPU = torch.device("cpu")


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 64 kB\n", encoding="ascii")
    return file


def test_the_system_says_what_is_available(tmp_path: Path, meminfo: Path) -> None:
    assert free_bytes(CPU, tmp_path / "none", meminfo) == 64 * 1024
    assert free_bytes(CPU, tmp_path / "none", tmp_path / "none") is None


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path, meminfo: Path) -> None:
    for name, text in {
        "memory.max": "30000",
        "memory.current": "20000",
        "memory.stat": "anon 1\ninactive_file 500",
    }.items():
        (tmp_path / name).write_text(text + "\n", encoding="ascii")
    assert free_bytes(CPU, tmp_path, meminfo) == 10500
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert free_bytes(CPU, tmp_path, meminfo) == 64 * 1024


def test_this_machine_has_some() -> None:
    free = free_bytes(CPU)
    assert free is None or free > 2**20
