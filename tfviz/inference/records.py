"""What was measured, as flat rows that can leave the machine: what for, which quantity, its value, unit and spread."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from tfviz.inference.device import describe
from tfviz.inference.measure import Latency

Setting = str | int | float | bool


@dataclass(frozen=True)
class Record:
    """One figure. `setting` says all that it depends on besides the machine: {"kernel": "flash", "n": 1024}."""

    experiment: str  # kernels | precision | quantisation | roofline | memory | recurrent | claims
    setting: Mapping[str, Setting]
    quantity: str  # latency | peak_bytes | weight_bytes | tokens_per_second | kl | ...
    value: float
    unit: str  # s | B | token/s | FLOP/s | B/s | nat | 1
    low: float | None = None  # quartiles of what was measured more than once
    high: float | None = None
    runs: int | None = None
    at: str = ""  # UTC, ISO 8601, seconds


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def latency_record(experiment: str, setting: Mapping[str, Setting], took: Latency, quantity: str = "latency") -> Record:
    return Record(experiment, setting, quantity, took.median, "s", took.low, took.high, took.runs, now())


@dataclass(frozen=True)
class Machine:
    """Where it was measured; nothing in it names a person, a host or a folder."""

    device: str  # as its maker writes it
    kind: str  # cpu | cuda | mps
    threads: int | None  # of PyTorch; None where the CPU's do not matter
    capability: str  # what PyTorch's kernels use of the processor: AVX512, DEFAULT, or the CUDA compute capability
    system: str  # Linux x86_64
    python: str
    torch: str


def machine(device: torch.device) -> Machine:
    told = describe(device)
    if device.type == "cuda":
        capability = "{}.{}".format(*torch.cuda.get_device_capability(device))
    else:
        capability = torch.backends.cpu.get_cpu_capability()
    version = ".".join(map(str, sys.version_info[:3]))
    return Machine(
        told.name,
        told.kind,
        told.threads,
        capability,
        f"{platform.system()} {platform.machine()}",
        version,
        torch.__version__,
    )
