"""What a caller can do wrong. Each error is one sentence, kept in the translation files and filled with its values."""

from tfviz.messages import sentences, text


class TfvizError(ValueError):
    """A caller's mistake in one sentence: `str(error)` is English, `error.in_language("zh")` says it in Chinese."""

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(text(key, "en", **values))

    def in_language(self, language: str) -> str:
        return text(self.key, language, **self.values)


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
