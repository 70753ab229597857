"""One line under the tokens: which characters the tokenizer dropped or changed."""

import unicodedata
from collections import Counter
from collections.abc import Iterable

from tfviz.sources.altered import Altered
from tfviz.sources.tokens import visible
from tfviz.ui.i18n import Translator

MOST = 8  # different characters of a kind that are listed


def altered_line(found: Altered, model: str, t: Translator) -> str:
    """Empty where every character reached the model as it was typed."""
    parts = []
    if found.dropped:
        parts.append(t("attention.altered.dropped", characters=_listed(map(_shown, found.dropped))))
    if found.changed:
        pairs = (t("attention.altered.pair", typed=_shown(a), read=visible(b)) for a, b in found.changed)
        parts.append(t("attention.altered.changed", pairs=_listed(pairs)))
    if found.lowered:
        parts.append(t("attention.altered.lowered"))
    if not parts:
        return ""
    return t("attention.altered", model=model, parts=t("attention.altered.and").join(parts))


def _listed(found: Iterable[str]) -> str:
    """Each once, with how often it stood there."""
    counted = Counter(found)
    shown = [one if n == 1 else f"{one} ×{n}" for one, n in list(counted.items())[:MOST]]
    return ", ".join(shown + ["…"] * (len(counted) > MOST))


def _shown(character: str) -> str:
    """A mark that needs a letter gets a dotted circle; what has no ink its number."""
    kind = unicodedata.category(character)
    if kind in {"Mn", "Me"} and not 0xFE00 <= ord(character) <= 0xFE0F:
        return f"◌{character}"
    return f"U+{ord(character):04X}" if kind[0] in "CM" and kind != "Mc" else visible(character)
