"""Fill in: the sentence as a row of tokens that a click hides and shows; assets/js/views/fill.js draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.picture import Panel
from tfviz.ui.i18n import Translator

if TYPE_CHECKING:  # torch comes with it
    from tfviz.sources.tokens import Token

MOST = 512  # positions that one wish may name


@dataclass(frozen=True)
class Chip:
    """What became of one token: its state, what the model reads instead, what it says stands there."""

    state: str  # mask | random | kept | typed
    read: str = ""
    guess: str = ""
    right: bool | None = None


def asked(ask: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The positions that the page wants hidden, as far as they are positions; None if it has not said."""
    said = ask.get("masked")
    if not isinstance(said, list):
        return None
    return tuple(sorted({one for one in said[:MOST] if type(one) is int and 0 <= one < MOST}))


def row(
    tokens: Sequence["Token"], chips: Mapping[int, Chip], places: Sequence[int], by_hand: bool, t: Translator, note: str
) -> Panel:
    """The row; `by_hand` tells whether clicks change it."""
    shown = []
    for i, token in enumerate(tokens):
        chip = chips.get(i, Chip("special" if token.special else "typed" if token.typed else "plain"))
        shown.append(
            {
                "text": token.label,
                "state": chip.state,
                "read": chip.read,
                "guess": chip.guess,
                "right": chip.right,
                "joined": token.joined,
            }
        )
    data = {
        "tokens": shown,
        "hidden": [i for i, chip in sorted(chips.items()) if by_hand and chip.state == "mask"],
        "places": list(places),
        "open": by_hand,
        "words": {
            "row": t("generate.fill.row"),
            "hide": t("generate.fill.hide", token="{token}"),
            "show": t("generate.fill.show", token="{token}"),
            "clear": t("generate.fill.clear"),
        },
    }
    return Panel(view="fill", data=data, wide=True, note=note)
