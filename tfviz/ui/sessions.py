"""What the server keeps of an opened page, and for how long.

Gradio keeps a session for each page for ever (up to 10,000), and in it a copy of every component's configuration and
of the last value that it showed, for its deep links. Here a session keeps its own states alone, and goes with its page.
"""

import asyncio
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import datetime
from typing import Any

from gradio.blocks import Blocks
from gradio.components import State
from gradio.state_holder import SessionState, StateHolder

GRACE = 30.0  # seconds in which a page whose connection broke may come back
MOST = 1000  # sessions in all
MOST_UNATTENDED = 100  # of callers whose page is not open: not yet, no longer, or because they have none


class Session(SessionState):
    """The states of one page. Components are shared with every other page, but for those that were updated here."""

    def __init__(self, blocks: Blocks) -> None:  # not the parent's, which copies all that this class is without
        shared = blocks.default_config
        self.blocks_config = copy(shared)
        self.blocks_config.blocks = ChainMap({}, shared.blocks)  # type: ignore[assignment]
        self.blocks_config.fns = shared.fns  # nothing here is rendered anew
        self.config_values: dict[int, dict[str, Any]] = {}
        self.state_data: dict[int, Any] = {}
        self._state_ttl: dict[int, Any] = {}
        self.is_closed = False
        self.STATE_TTL_WHEN_CLOSED = 3600

    def __setitem__(self, key: int, value: Any) -> None:
        if isinstance(self.blocks_config.blocks.get(key), State):
            self.state_data[key] = value
        else:
            self.blocks_config.blocks[key] = value

    def _update_config(self, key: int) -> None:
        """Nothing: no deep link is ever made."""

    def _update_value_in_config(self, key: int, value: Any) -> None:
        """Nothing: a value that was shown is the browser's."""


class Sessions(StateHolder):
    """All sessions, the one that was used last at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.when_gone: list[Callable[[str], None]] = []  # hear the name of each session that is given back
        self._open: Counter[str] = Counter()  # session -> its heartbeats

    def __getitem__(self, session_id: str) -> SessionState:
        with self.lock:
            if session_id not in self.session_data:
                self.session_data[session_id] = Session(self.blocks)
            self.session_data.move_to_end(session_id)
            self.time_last_used[session_id] = datetime.now()
            found = self.session_data[session_id]
            unattended = [name for name in self.session_data if name not in self._open]
            n_crowded = max(len(unattended) - MOST_UNATTENDED, 0)
            crowded = unattended[:n_crowded] or list(self.session_data)[: max(len(self.session_data) - MOST, 0)]
        for name in crowded:
            self.give_back(name)
        return found

    @contextmanager
    def attended(self, session_id: str) -> Iterator[None]:
        """While this page holds its connection; some time after the last one has ended the session is given back."""
        self._open[session_id] += 1
        try:
            yield
        finally:
            self._open[session_id] -= 1
            if not self._open[session_id]:
                del self._open[session_id]
                asyncio.get_running_loop().call_later(GRACE, self._leave, session_id)

    def _leave(self, session_id: str) -> None:
        if session_id not in self._open:
            self.give_back(session_id)

    def give_back(self, session_id: str) -> None:
        """Forgets a session, here and in the queue, and whatever else was kept for it."""
        with self.lock:
            self.session_data.pop(session_id, None)
            self.time_last_used.pop(session_id, None)
        queue = self.blocks._queue
        if not any(event.session_hash == session_id for event in list(queue.event_ids_to_events.values())):
            queue.pending_messages_per_session.pop(session_id, None)  # which nobody has fetched
            queue.pending_event_ids_session.pop(session_id, None)
        for listener in self.when_gone:
            listener(session_id)
