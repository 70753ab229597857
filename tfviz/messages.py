"""Every sentence a person reads, by key and language: `assets/i18n/<language>/<area>.json`, flat key -> sentence."""

import json
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).resolve().parent.parent / "assets"
LANGUAGES = {"en": "English", "zh": "中文"}


@cache
def sentences(language: str) -> dict[str, str]:
    """The whole table of one language, its area files joined; `KeyError` for a language that has none."""
    if language not in LANGUAGES:
        raise KeyError(f"no language {language!r}; there are {', '.join(LANGUAGES)}")
    table: dict[str, str] = {}
    for area in sorted((ASSETS / "i18n" / language).glob("*.json")):
        table |= json.loads(area.read_text(encoding="utf-8"))
    return table


def text(key: str, language: str = "en", **values: object) -> str:
    """The sentence `key` with its `{values}` filled in. A missing key is our own mistake: `KeyError`."""
    return sentences(language)[key].format_map(values)
