"""The server gives an opened page back, keeps little of it meanwhile, and answers only what the page asks."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest
from gradio.routes import App
from starlette.testclient import TestClient

from tfviz.config import Settings
from tfviz.ui import doors, sessions
from tfviz.ui.sessions import Sessions
from tfviz.ui.shell import build_app, served


@pytest.fixture(scope="module")
def app() -> gr.Blocks:
    return build_app(Settings.from_environment())


@pytest.fixture(scope="module")
def client(app: gr.Blocks) -> Iterator[TestClient]:
    with TestClient(App.create_app(app, app_kwargs=served(app))) as made:
        yield made


@pytest.fixture
def kept(app: gr.Blocks, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    monkeypatch.setattr(app, "state_holder", app.state_holder)
    made = Sessions()
    made.set_blocks(app)
    return made


def test_a_closed_page_is_given_back_and_one_that_comes_back_is_not(
    kept: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GRACE", 0.0)
    gone: list[str] = []
    kept.when_gone.append(gone.append)

    async def visits() -> None:
        with kept.attended("gone"), kept.attended("back"):
            assert kept["gone"] is kept["gone"] and kept["back"] is not kept["gone"]
        with kept.attended("back"):
            await asyncio.sleep(0.01)
            assert list(kept.session_data) == ["back"] and gone == ["gone"]

    asyncio.run(visits())


def test_sessions_without_a_page_make_room_and_open_pages_stay(kept: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_UNATTENDED", 2)

    async def visits() -> None:
        with kept.attended("open"):
            for name in ("open", "1", "2", "3"):
                kept[name]
            assert list(kept.session_data) == ["open", "2", "3"]

    asyncio.run(visits())


def test_no_more_pages_are_kept_than_there_is_room_for(kept: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST", 2)

    async def visits() -> None:
        with kept.attended("1"), kept.attended("2"), kept.attended("3"):
            for name in ("1", "2", "3"):
                kept[name]
            assert list(kept.session_data) == ["2", "3"]

    asyncio.run(visits())


def test_a_session_keeps_its_states_and_not_the_page(app: gr.Blocks, kept: Sessions) -> None:
    """Gradio's own holds 1 to 2 MB; what was shown is the browser's."""
    state = next(block for block in app.blocks.values() if isinstance(block, gr.State))
    box = next(block for block in app.blocks.values() if isinstance(block, gr.Textbox))
    tracemalloc.start()
    for i in range(20):
        session = kept[str(i)]
        session[state._id] = {"layer": i}
        session._update_value_in_config(box._id, "x" * 100_000 + str(i))
        session[box._id] = box
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / 20 < 20_000
    assert [kept[str(i)][state._id] for i in range(2)] == [{"layer": 0}, {"layer": 1}]


def test_every_listener_of_the_page_uses_the_queue(app: gr.Blocks) -> None:
    """Calls beside it have an address of their own, and that is closed."""
    assert [fn.name for fn in app.fns.values() if fn.fn is not None and not fn.queue] == []


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/gradio_api/upload"),
        ("POST", "/gradio_api/upload/"),
        ("POST", "/gradio_api/run/trace"),
        ("POST", "/gradio_api/api/trace"),
        ("POST", "/gradio_api/call/trace"),
        ("GET", "/gradio_api/deep_link?session_hash=x"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/openapi.json"),
        ("GET", "/openapi.json"),
        ("GET", "/monitoring"),
        ("GET", "/monitoring/summary"),
        ("GET", "/gradio_api/file=/etc/hostname"),
        ("GET", "/gradio_api/proxy=https://example.com"),
        ("GET", "/gradio_api/stream/a/b/1/playlist-file"),
        ("GET", "/gradio_api/mcp/sse"),
        ("GET", "/gradio_api/runs"),
        ("GET", "/config/../gradio_api/info"),
    ],
)
def test_what_the_page_never_asks_for_is_not_found(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 404


@pytest.mark.parametrize("path", ["/config", "/plotly.js", "/gradio_api/startup-events"])
def test_what_the_page_asks_for_is_answered(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


def test_a_request_larger_than_any_of_the_page_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MOST_BYTES", 1000)

    def unannounced() -> Iterator[bytes]:
        for _ in range(3):
            yield b" " * 500

    bodies: list[Any] = [b" " * 1001, unannounced()]
    assert [client.post("/gradio_api/queue/join", content=body).status_code for body in bodies] == [413, 400]
