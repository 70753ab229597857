"""Which addresses the server answers: those that the page itself asks for, and no request is larger than it needs.

Gradio brings many more: uploads that nothing fetches and nothing removes, files, deep links, calls that skip the queue,
statistics, descriptions of every event. None of them is of use here, so they are not found.
"""

import re
from collections.abc import MutableMapping
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tfviz.ui.sessions import Sessions

MOST_BYTES = 8 * 2**20  # of a request: a config of 2 million characters (config_box.py), each of up to 4 bytes
HEARTBEAT = re.compile(r"/gradio_api/heartbeat/([^/]+)")
OPEN = re.compile(
    r"/(?:zh/?)?"
    r"|/(?:zh/)?config/?"
    r"|/plotly\.js|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/pwa_icon(?:/\d+)?"
    r"|/(?:assets|static|svelte)/.+"
    r"|/gradio_api/(?:queue/join|queue/data|component_server|cancel|reset|startup-events|theme\.css|app_id)/?"
)


class Doors:
    """The ASGI application behind these doors; it tells `sessions` how long each page is open."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self.app, self.sessions = app, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if heartbeat := HEARTBEAT.fullmatch(path):
            with self.sessions.attended(heartbeat[1]):
                return await self.app(scope, receive, send)
        if not OPEN.fullmatch(path):
            return await PlainTextResponse("Not found", 404)(scope, receive, send)
        if _announced(scope) > MOST_BYTES:
            return await PlainTextResponse("Too large", 413)(scope, receive, send)
        await self.app(scope, _bounded(receive), send)


def _announced(scope: MutableMapping[str, Any]) -> int:
    """The length that a request says it has; 0 where it says none."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def _bounded(receive: Receive) -> Receive:
    """`receive` until more than `MOST_BYTES` have come: then it is as if the caller had gone."""
    n_bytes = 0

    async def receive_some() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        return message if n_bytes <= MOST_BYTES else {"type": "http.disconnect"}

    return receive_some
