"""What all parts of one page share: its language, the workbench behind it, and what is shown of each new trace."""

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from tfviz.config import Settings
from tfviz.errors import TfvizError
from tfviz.ui.i18n import Translator

if TYPE_CHECKING:  # torch comes with it, and the page must be up before torch is
    from tfviz.introspection.trace import Trace
    from tfviz.introspection.workbench import Workbench

KEPT_SESSIONS = 1000
logger = logging.getLogger(__name__)
Show = Callable[[str, "Trace", dict[str, Any]], Any]  # (trace id, trace, selection) -> the component's new value


@dataclass
class AppContext:
    """One page (one language). Tabs add their outputs with `on_trace`."""

    t: Translator
    settings: Settings
    selection: Any = None  # gr.State: kind, layer, head, query, key; shared by all tabs
    notice: Any = None  # small; Gradio writes the state of every event into a component, copying all that it holds
    attention_view: Any = None  # raises the events `select` and `gone`
    outputs: list[tuple[Any, Show]] = field(default_factory=list)
    wishes: OrderedDict[str, dict[str, object]] = field(default_factory=OrderedDict)  # session -> section -> newest

    def newest_wish(self, session: str, section: str) -> Callable[[], bool]:
        """Notes a wish of this page; the answer tells whether a later one has come, or the page has gone."""
        ticket = object()
        self.wishes.setdefault(session, {})[section] = ticket
        self.wishes.move_to_end(session)
        while len(self.wishes) > KEPT_SESSIONS:
            self.wishes.popitem(last=False)
        return lambda: self.wishes.get(session, {}).get(section) is not ticket

    @property
    def workbench(self) -> "Workbench":
        from tfviz.introspection.workbench import default_workbench

        return default_workbench()

    def sentence(self, error: Exception) -> str:
        """A caller's mistake as its sentence; anything else as an apology with the id under which it was logged."""
        if isinstance(error, TfvizError):
            return self.t.error(error)
        number = secrets.token_hex(4)
        logger.error("error %s", number, exc_info=error)
        return self.t("page.sorry", id=number)

    def on_trace(self, component: Any, show: Show) -> None:
        """`component` gets `show(...)` as its value whenever a new trace is there."""
        self.outputs.append((component, show))


def quietly(ctx: AppContext) -> dict[str, Any]:
    """How the page's events listen: privately, and without Gradio's own marks of progress."""
    return {"show_progress": "hidden", "show_progress_on": ctx.notice, "api_visibility": "private"}


@dataclass(frozen=True)
class Step:
    """News of a job: what it is doing, or its result or error."""

    doing: str = ""
    part: float | None = None  # 0..1, measured
    result: Any = None
    error: Exception | None = None
    done: bool = False


def follow(job: Callable[[Callable[[Step], None]], Any], every: float = 0.5) -> Iterator[Step]:
    """Runs `job(report)` in a thread and yields its newest report at most every `every` seconds, then its end.

    A job that takes less than `every` yields its end alone, so that quick work shows no flicker of news.
    """
    news: Queue[Step] = Queue()

    def work() -> None:
        try:
            news.put(Step(result=job(news.put), done=True))
        except Exception as error:  # handed to the one place that turns errors into sentences
            news.put(Step(error=error, done=True))

    Thread(target=work, daemon=True).start()
    while True:
        deadline = monotonic() + every
        step = news.get()
        try:
            while not step.done:  # only the newest counts
                step = news.get(timeout=max(0.0, deadline - monotonic()))
        except Empty:
            pass
        yield step
        if step.done:
            return
