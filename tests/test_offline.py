"""Once a model is on disk, nothing of it asks the network: every attempt to reach another machine is caught."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfviz.config import Settings

ROOT = Path(__file__).resolve().parent.parent
WATCHED = """
import socket, sys

asked = []

def refuse(host, *rest, **more):
    asked.append(str(host))
    raise OSError(f"asked for {host}")

socket.getaddrinfo = refuse
socket.socket.connect = lambda self, address: refuse(address)

import tfviz

trace = tfviz.trace("the cat saw the other cat", model=sys.argv[1], overview=True)
tfviz.measure("the cat", model=sys.argv[1], precisions=["fp32", "int8"], repeats=1)
tfviz.models()
assert trace.tokens, "no tokens"
assert not asked, f"asked for {asked}"
"""


def run_watched(model: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, without the switches that keep the other tests offline."""
    return subprocess.run([sys.executable, "-c", WATCHED, model], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(autouse=True)
def as_a_person_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_a_local_folder_is_traced_without_a_word_to_the_network(checkpoint: Callable[[str], Path]) -> None:
    done = run_watched(str(checkpoint("llama")))
    assert done.returncode == 0, done.stderr


@pytest.mark.weights
def test_an_embedded_model_on_disk_is_traced_without_a_word_to_the_network() -> None:
    if not (Settings.from_environment().cache / "models" / "minilm-l6" / "model.safetensors").exists():
        pytest.skip("the embedded models are not on disk; `python -m tfviz.sources.fetch` fetches them")
    done = run_watched("minilm-l6")
    assert done.returncode == 0, done.stderr
