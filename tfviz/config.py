"""Settings of a running tfviz, read once from TFVIZ_* environment variables. README lists them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfviz.errors import TfvizError

MIB = 1024 * 1024


def _default_cache(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfviz"


def _whole(env: Mapping[str, str], name: str, default: int) -> int:
    raw = env.get(name, "").strip()
    if not raw:
        return default
    try:
        value = int(raw)
    except ValueError:
        value = -1
    if value < 0:
        raise TfvizError("error.setting", name=name, value=raw, allowed="a whole number, 0 or more")
    return value


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    raw = env.get(name, "").strip().lower()
    if raw in {"", "0", "1", "true", "false", "yes", "no", "on", "off"}:
        return default if not raw else raw in {"1", "true", "yes", "on"}
    raise TfvizError("error.setting", name=name, value=raw, allowed="0 or 1")


def _device(env: Mapping[str, str]) -> str:
    """Only its form: whether the device is there is known once torch is."""
    device = env.get("TFVIZ_DEVICE", "").strip() or "auto"
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise TfvizError("error.setting", name="TFVIZ_DEVICE", value=device, allowed="auto, cpu, cuda, cuda:1 or mps")
    return device


@dataclass(frozen=True)
class Settings:
    """One immutable record; sizes in bytes, lengths in tokens, 0 = no limit where a limit is optional."""

    cache: Path
    device: str  # auto | cpu | cuda | mps
    threads: int  # 0: torch's own choice
    model: str  # what the page opens with
    memory_budget: int  # bytes of resident weights before the least recently used model is dropped
    trace_budget: int  # bytes of traces kept for open pages
    max_tokens: int  # longest text the page traces
    allow_hub: tuple[str, ...] | None  # None: any hub id; otherwise only these
    allow_local: bool  # whether a typed path may name a folder of the server
    max_params: int  # 0: no limit

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Reads TFVIZ_*; a value that makes no sense is an error that names the variable."""
        env = os.environ if env is None else env
        hub = env.get("TFVIZ_ALLOW_HUB", "*").strip()
        return cls(
            cache=Path(env.get("TFVIZ_CACHE") or _default_cache(env)).expanduser(),
            device=_device(env),
            threads=_whole(env, "TFVIZ_THREADS", 0),
            model=env.get("TFVIZ_MODEL", "").strip() or "smollm2-135m",
            memory_budget=_whole(env, "TFVIZ_MEMORY_BUDGET", 4096) * MIB,
            trace_budget=_whole(env, "TFVIZ_TRACE_BUDGET", 1024) * MIB,
            max_tokens=_whole(env, "TFVIZ_MAX_TOKENS", 1024),
            allow_hub=None if hub == "*" else tuple(part.strip() for part in hub.split(",") if part.strip()),
            allow_local=_flag(env, "TFVIZ_ALLOW_LOCAL", default="SPACE_ID" not in env),
            max_params=_whole(env, "TFVIZ_MAX_PARAMS", 0),
        )
