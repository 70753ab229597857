"""The app: the page in every language, its look, how it is served. Nothing here imports torch; a thread warms it up."""

import gzip
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")  # it makes a table of them all after each event
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is: its profiler talks on stderr

import gradio as gr
from gradio.routes import App
from plotly.offline import get_plotlyjs
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tfviz.config import Settings
from tfviz.messages import ASSETS
from tfviz.ui.context import AppContext
from tfviz.ui.doors import Doors
from tfviz.ui.i18n import Translator
from tfviz.ui.page import PATHS, Page
from tfviz.ui.sessions import Sessions

logger = logging.getLogger(__name__)
PLOTLY = "/plotly.js"


def build_app(settings: Settings) -> gr.Blocks:
    """Both languages' pages in one Blocks: English at /, Chinese at /zh."""
    sessions = Sessions()
    with gr.Blocks(title="tfviz", analytics_enabled=False) as app:
        sessions.when_gone.append(Page(AppContext(Translator("en"), settings)).forget)
    for language, path in PATHS.items():
        if language != "en":
            with app.route(language, path, show_in_navbar=False):
                sessions.when_gone.append(Page(AppContext(Translator(language), settings)).forget)
    app.queue(default_concurrency_limit=8, max_size=64, status_update_rate=2, api_open=False)
    sessions.set_blocks(app)
    return app


def launch(app: gr.Blocks, settings: Settings, **options: Any) -> Any:
    """Serves the app; GRADIO_SERVER_NAME and GRADIO_SERVER_PORT say where. `options` go to Gradio as they are."""
    threading.Thread(target=_warm_up, args=[settings], daemon=True).start()
    return app.launch(
        theme=theme(),
        head=_head(),
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        show_error=False,
        ssr_mode=False,  # on a Space Gradio would put a server of its own before these doors
        app_kwargs=served(app),
        **options,
    )


def served(app: gr.Blocks) -> dict[str, Any]:
    """What the server takes from here instead of from Gradio: its sessions, its doors, and an address for Plotly."""
    sessions = app.state_holder
    assert isinstance(sessions, Sessions), f"an app of build_app's, not one with {sessions}"

    @asynccontextmanager
    async def lifespan(server: App) -> AsyncIterator[None]:
        server.state_holder = sessions
        sessions.set_blocks(app)
        yield

    doors = Middleware(Doors, sessions=sessions)
    return {"routes": [Route(PLOTLY, _plotly)], "lifespan": lifespan, "middleware": [doors]}


def theme() -> gr.themes.Base:
    """Slate and indigo, fonts that are on the machine; no default look left where a person would notice."""
    plex = gr.themes.utils.fonts.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.utils.fonts.LocalFont("IBM Plex Mono", weights=(400, 700))
    cjk = ["Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "system-ui", "sans-serif"]
    return gr.themes.Base(
        primary_hue="indigo", neutral_hue="slate", font=[plex, *cjk], font_mono=[mono, "ui-monospace", "monospace"]
    )


def _head() -> str:
    """Styles that reach outside Gradio's own prefix, and the page's scripts. All inline: nothing is fetched."""
    inside = {"attention_view.css", "answer.css"}  # their components bring them
    css = ["tokens.css", "page.css", "player.css", *sorted(path.name for path in (ASSETS / "css").glob("*.css"))]
    styles = "".join(_read("css", name) for name in dict.fromkeys(css) if name not in inside)
    views = sorted(path.name for path in (ASSETS / "js" / "views").glob("*.js"))
    scripts = [_read("js", name) for name in ("page.js", "save.js", "picture.js", "player.js")]
    scripts += [_read("js", "views", name) for name in views]
    script = ";".join(scripts).replace("</script", r"<\/script")  # in a string of theirs it would end ours
    return f"<style>{styles}</style><script>{script}</script>"


def _read(*names: str) -> str:
    return ASSETS.joinpath(*names).read_text(encoding="utf-8")


def _plotly(request: Request) -> Response:
    """The Plotly of the plotly package, for the pictures that picture.js draws; the same for a whole release."""
    headers = {"Content-Encoding": "gzip", "Cache-Control": "public, max-age=86400", "ETag": f'"{version("plotly")}"'}
    return Response(_plotly_packed(), media_type="text/javascript", headers=headers)


@cache
def _plotly_packed() -> bytes:
    return gzip.compress(get_plotlyjs().encode(), 6)


def _warm_up(settings: Settings) -> None:
    """Imports torch and transformers and loads the first model, so that the first visitor does not wait for it."""
    try:
        from tfviz.inference.measure import peak_extra_bytes
        from tfviz.introspection.workbench import default_workbench

        peak_extra_bytes(lambda: None, default_workbench().resident.device)  # torch's profiler likes its first thread
        default_workbench().resident.get(settings.model)
    except Exception:  # the page will say what is wrong when somebody asks for the model
        logger.warning("could not load %s in advance", settings.model, exc_info=True)
