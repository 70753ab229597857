"""What the architecture map is drawn of: blocks, some of which lead to a tab as buttons, and arrows with shapes."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tfviz.ui.i18n import Translator

if TYPE_CHECKING:
    from tfviz.sources.blocks import Architecture, Side

LEADS = {  # kind of block -> (tab, section) that it opens
    "embedding": ("", ""),
    "positions": ("positions", ""),
    "norm": ("layers", "layers.norm"),
    "attention": ("attention", ""),
    "cross": ("attention", ""),
    "feed_forward": ("layers", "layers.ffn"),
    "add": ("layers", "layers.residual"),
}


@dataclass(frozen=True)
class Spot:
    """What is drawn: the model, the stack and the layer that are opened, and the kind of attention chosen there."""

    found: "Architecture"
    side: str
    layer: int
    t: Translator

    def button(
        self, kind: str, inner: str, *, name: str, place: Mapping[str, Any] | None = None, extra: str = ""
    ) -> str:
        """A block that leads somewhere, or one that only stands there."""
        tab, section = LEADS.get(kind, ("", ""))
        classes = f"tv-map-block tv-map-{kind.replace('_', '-')} {extra}".strip()
        if not tab:
            return f'<div class="{classes}">{inner}</div>'
        return lead(inner, classes, self.t(f"layers.map.to.{section or tab}", name=name), tab, section, place)


def lead(
    inner: str, classes: str, says: str, tab: str, section: str = "", place: Mapping[str, Any] | None = None
) -> str:
    """A button that opens a tab, at a section and a place of the shared selection."""
    data = f' data-tab="{tab}"' + (f' data-section="{section}"' if section else "")
    data += f' data-select="{escape(json.dumps(dict(place)))}"' if place else ""
    hidden = f'<span class="tv-hidden">{escape(says)}</span>'
    return f'<button type="button" class="{classes}" title="{escape(says)}"{data}>{inner}{hidden}</button>'


def shape(sizes: Iterable[int]) -> str:
    return " × ".join(f"{size:,}" for size in sizes)


def text(name: str, more: str, count: int | None, t: Translator, *, tied: bool = False) -> str:
    """What stands in a block: its name, what is special about it, its parameters."""
    said = f'<span class="tv-map-more">{escape(more)}</span>' if more else ""
    number = t("layers.map.tied") if tied else "" if count is None else f"{count:,}"
    counted = f'<span class="tv-map-count">{escape(number)}</span>' if number else ""
    return f'<span class="tv-map-name">{escape(name)}</span>{counted}{said}'


def arrow(label: str = "", extra: str = "") -> str:
    said = f"<span>{escape(label)}</span>" if label else ""
    return f'<div class="tv-map-arrow {extra}">{said}</div>'


def stream(side: "Side", d_model: int) -> str:
    return shape((side.n_tokens, d_model))
