"""How much memory could still be allocated on a device: the system's own word, or less by a container's limit."""

from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device, cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """None where the system does not say (neither Linux nor CUDA)."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by the allocator
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    found = [one for one in (_available(meminfo), _left_in(cgroup)) if one is not None]
    return min(found) if found else None


def _available(meminfo: Path) -> int | None:
    if not meminfo.exists():
        return None
    lines = meminfo.read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _left_in(cgroup: Path) -> int | None:
    """Of a container's limit (cgroup v2); cached files give way, so they count as free."""
    limit, used = (_number(cgroup / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return None
    return max(0, limit - used + (_cached(cgroup / "memory.stat") or 0))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, not readable, or "max"
        return None


def _cached(file: Path) -> int | None:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), None)
