"""How much other work on the machine held a measurement up: the time that threads of this process waited for a CPU.

Linux adds it up for every thread, in nanoseconds: the second number of /proc/self/task/<thread>/schedstat
(https://docs.kernel.org/scheduler/sched-stats.html).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

TASKS = Path("/proc/self/task")
QUIET = (
    0.3  # share up to which times are believed: one more busy thread on two cores takes 1/3, a browser that draws 0.2
)


def waited() -> float:
    """Seconds for which threads of this process have been ready to run and had no CPU; 0 where nobody counts them."""
    total = 0
    for stat in TASKS.glob("*/schedstat"):
        try:
            total += int(stat.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # the thread has ended, or this kernel does not count
            continue
    return total / 1e9


class Contention:
    """Adds up what happens inside `with contention.watched():`."""

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        begun, before = time.perf_counter(), waited()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun
            self.waited += max(0.0, waited() - before)  # the sum of a thread that ended is gone with it

    @property
    def share(self) -> float:
        """Of the time of all computing threads: 0 on a quiet machine, 0.5 where another program wants every CPU too."""
        return min(1.0, self.waited / (self.seconds * torch.get_num_threads())) if self.seconds else 0.0
