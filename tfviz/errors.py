"""What a caller can do wrong. Each error is one sentence, kept in the translation files and filled with its values."""

from collections.abc import Mapping
from dataclasses import dataclass

from tfviz.messages import sentences, text


@dataclass(frozen=True)
class Phrase:
    """A value of a sentence that is translated with it: "a whole number, 1 or more"."""

    key: str
    values: Mapping[str, object]


class TfvizError(ValueError):
    """A caller's mistake in one sentence: `str(error)` is English, `error.in_language("zh")` says it in Chinese."""

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(TfvizError.in_language(self, "en"))

    def in_language(self, language: str) -> str:
        return text(self.key, language, **{name: _said(value, language) for name, value in self.values.items()})


def _said(value: object, language: str) -> object:
    return text(value.key, language, **value.values) if isinstance(value, Phrase) else value


class UnknownChoice(TfvizError):
    """A name that is not in the table it was looked up in; `what` it should have been is a word of the translations."""

    def in_language(self, language: str) -> str:
        what = f"word.{self.values['what']}"
        known = {"what": text(what, language)} if what in sentences(language) else {}
        return text(self.key, language, **self.values | known)


class ModelUnavailable(TfvizError):
    """A model that cannot be had: not found, not reachable, not allowed, or of a kind that cannot be read."""


class BadText(TfvizError):
    """A text that gives the model nothing to look at."""


class UnsupportedHere(TfvizError):
    """A setting that this device or this model cannot run."""


class Overtaken(Exception):
    """Nobody waits for this any more; no caller's mistake, so there is no sentence."""


class WrongModel(BadText):
    """Something that a model of this kind does not have: no text would help, another model would."""
