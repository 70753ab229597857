"""Following a job: its newest report while it runs, then its result or its error, and nothing after that."""

import threading
import time
from queue import Queue
from typing import Any

import pytest

from tfviz.config import Settings
from tfviz.errors import BadText
from tfviz.ui.context import AppContext, Step, follow
from tfviz.ui.i18n import Translator


def test_a_job_without_news_yields_its_result_alone() -> None:
    assert list(follow(lambda report: 42)) == [Step(result=42, done=True)]


def test_a_job_may_have_no_result() -> None:
    assert list(follow(lambda report: None)) == [Step(done=True)]


@pytest.mark.parametrize("error", [BadText("error.no_tokens", model="m"), RuntimeError("no memory")])
def test_an_error_is_handed_on_as_the_end(error: Exception) -> None:
    def job(report: Any) -> None:
        raise error

    assert list(follow(job)) == [Step(error=error, done=True)]


def test_an_error_after_news_is_the_end_too() -> None:
    def job(report: Any) -> None:
        report(Step("half"))
        raise RuntimeError("gone")

    steps = list(follow(job, every=0.01))
    assert isinstance(steps[-1].error, RuntimeError) and steps[-1].done
    assert sum(step.done for step in steps) == 1


def test_of_news_that_come_at_once_only_the_newest_is_told() -> None:
    heard = threading.Event()

    def job(report: Any) -> str:
        for i in range(100):
            report(Step(f"{i} of 100"))
        assert heard.wait(timeout=30)
        return "done"

    steps = follow(job, every=0.02)
    assert next(steps).doing == "99 of 100"
    heard.set()
    assert [step.result for step in steps] == ["done"]


def test_news_that_never_pause_are_told_while_the_job_runs() -> None:
    """A download reports many times a second; its progress must be seen before it has ended."""
    go_on: Queue[None] = Queue()

    def job(report: Any) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and go_on.empty():
            report(Step("loading"))
            time.sleep(0.002)

    first = next(iter(follow(job, every=0.05)))
    go_on.put(None)
    assert not first.done and first.doing == "loading"


def test_the_last_news_are_never_told_after_the_end() -> None:
    def job(report: Any) -> int:
        for i in range(20):
            report(Step(str(i), part=i / 20))
            time.sleep(0.003)
        return 1

    steps = list(follow(job, every=0.001))
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    told = [int(step.doing) for step in steps[:-1]]
    assert told == sorted(told) and len(set(told)) == len(told)


def test_a_job_runs_in_a_thread_of_its_own_and_two_do_not_mix() -> None:
    jobs = [follow(lambda report, i=i: (i, threading.get_ident())) for i in range(5)]
    results = [list(job)[-1].result for job in jobs]
    assert [i for i, _ in results] == list(range(5))
    assert threading.get_ident() not in {thread for _, thread in results}


def test_outputs_are_kept_in_the_order_in_which_tabs_add_them(settings: Settings) -> None:
    ctx = AppContext(Translator("en"), settings)
    ctx.on_trace("first", lambda *_: 1)
    ctx.on_trace("second", lambda *_: 2)
    assert [component for component, _ in ctx.outputs] == ["first", "second"]
    assert AppContext(Translator("zh"), settings).outputs == []
