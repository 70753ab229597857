"""The sentences a person reads: every language says everything, with the same values filled in."""

import ast
import json
import re
from pathlib import Path
from string import Formatter

import pytest

from tfviz import errors
from tfviz.messages import ASSETS, LANGUAGES, sentences, text

ROOT = ASSETS.parent
OTHERS = sorted(LANGUAGES.keys() - {"en"})
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


def area_files(language: str) -> dict[str, Path]:
    return {path.name: path for path in (ASSETS / "i18n" / language).glob("*.json")}


def placeholders(sentence: str) -> set[str]:
    """`"{name} is {value:.2f}"` -> `{"name", "value"}`; a stray brace is a `ValueError`."""
    return {field for _, field, _, _ in Formatter().parse(sentence) if field is not None}


def keys_used(path: Path) -> set[str]:
    """The keys that a Python file names in `text("...")` or in one of our errors, and the phrases of its checks."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Constant(value=str(key)) if re.fullmatch(r"allowed\.\w+", key):
                found.add(key)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(key)), *_]):
                if name in ERRORS | {"text"} and re.fullmatch(r"[\w-]+(\.[\w-]+)+", key):
                    found.add(key)
    return found


def test_each_language_has_its_folder() -> None:
    assert {path.name for path in (ASSETS / "i18n").iterdir() if path.is_dir()} == LANGUAGES.keys()


@pytest.mark.parametrize("language", OTHERS)
def test_languages_have_the_same_area_files(language: str) -> None:
    assert area_files(language).keys() == area_files("en").keys()


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("area", sorted(area_files("en")))
def test_an_area_has_the_same_keys_in_each_language(area: str, language: str) -> None:
    table = {lang: json.loads(area_files(lang)[area].read_text(encoding="utf-8")) for lang in ("en", language)}
    assert table[language].keys() == table["en"].keys()


@pytest.mark.parametrize("language", OTHERS)
def test_a_sentence_takes_the_same_values_in_each_language(language: str) -> None:
    english, other = sentences("en"), sentences(language)
    different = {key for key in english.keys() & other.keys() if placeholders(english[key]) != placeholders(other[key])}
    assert not different


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_is_empty(language: str) -> None:
    assert not {key for key, sentence in sentences(language).items() if not sentence.strip()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_key_is_written_twice(language: str) -> None:
    """Neither within an area file, where JSON would keep the last one, nor in two of them."""
    pairs: list[tuple[str, str]] = []
    for path in area_files(language).values():
        pairs += json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=lambda found: found)
    assert all(isinstance(key, str) and isinstance(sentence, str) for key, sentence in pairs)
    assert len(pairs) == len(sentences(language))


def test_every_key_named_in_the_code_has_a_sentence() -> None:
    used = {key: path for path in [*(ROOT / "tfviz").rglob("*.py"), *ROOT.glob("app.py")] for key in keys_used(path)}
    assert "error.unknown_choice" in used
    assert not {key: str(path.relative_to(ROOT)) for key, path in used.items() if key not in sentences("en")}


def test_values_are_filled_in() -> None:
    for language in LANGUAGES:
        assert "flsh" in text("error.unknown_choice", language, what="kernel", name="flsh", choices="naive, flash")


def test_an_unknown_language_or_key_is_our_own_mistake() -> None:
    with pytest.raises(KeyError, match="en, zh"):
        sentences("xx")
    with pytest.raises(KeyError):
        text("no.such.key")
