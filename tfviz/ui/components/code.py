"""Code on the page: the real source of what was drawn, and code to take away, each with a button that copies it."""

import inspect
from collections.abc import Callable
from html import escape
from typing import Any

from tfviz.ui.i18n import Translator


def code_block(code: str, t: Translator) -> str:
    """The code with its copy button (page.js does the copying)."""
    words = f'data-copy="{escape(t("code.copy"))}" data-copied="{escape(t("code.copied"))}"'
    button = f'<button type="button" class="tv-copy" {words}>{escape(t("code.copy"))}</button>'
    return f'<div class="tv-code">{button}<pre tabindex="0"><code>{escape(code.rstrip())}</code></pre></div>'


def show_code(t: Translator, *shown: Callable[..., Any]) -> str:
    """The source of these functions and classes as it runs here, folded."""
    code = "\n\n\n".join(inspect.getsource(one).rstrip() for one in shown)
    return f'<details class="tv-about"><summary>{escape(t("code.show"))}</summary>{code_block(code, t)}</details>'
