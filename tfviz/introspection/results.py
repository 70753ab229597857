"""What has been measured on this machine since tfviz started: for pictures to be drawn again, and for export."""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tfviz.inference.records import Record

KEPT = 256  # findings


class Results:
    """Findings under the key that says what they depend on, each with its flat records; the oldest give way."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, tuple[Any, tuple[Record, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: Hashable, finding: Any, records: Sequence[Record] = ()) -> None:
        """Replaces what was found under `key` before, records and all; `finding` is CPU data that nobody changes."""
        rows = tuple(map(_without_folder, records))
        with self._lock:
            self._found[key] = finding, rows
            self._found.move_to_end(key)
            while len(self._found) > KEPT:
                self._found.popitem(last=False)

    def get(self, key: Hashable) -> Any:
        """None where nothing was found yet."""
        with self._lock:
            finding, _ = self._found.get(key, (None, ()))
            return finding

    def records(self, experiment: str | None = None) -> list[Record]:
        """All records, or those of one experiment, in the order in which their findings were put."""
        with self._lock:
            every = [record for _, records in self._found.values() for record in records]
        return [record for record in every if experiment is None or record.experiment == experiment]

    def clear(self) -> None:
        with self._lock:
            self._found.clear()


def public_name(model: str) -> str:
    """A local checkpoint by its own name, since every visitor sees it and files take it along; else as it is."""
    local = model.startswith(("/", "~", ".")) or "\\" in model or os.path.exists(model)
    return re.split(r"[/\\]", model.rstrip("/\\"))[-1] or "/" if local else model


def _without_folder(record: Record) -> Record:
    model = record.setting.get("model")
    if not isinstance(model, str) or public_name(model) == model:
        return record
    return replace(record, setting={**record.setting, "model": public_name(model)})
