"""The sentences offered as examples: one list for most models, others for models that read something else."""

import json
from functools import cache

from tfviz.messages import ASSETS


@cache
def _lists() -> dict[str, list[str]]:
    return json.loads((ASSETS / "examples" / "sentences.json").read_text(encoding="utf-8"))


def examples(model: str) -> list[str]:
    """What is offered for a model, the one it opens with first."""
    return _lists().get(model, _lists()["default"])


def most_examples() -> int:
    """The length of the longest list."""
    return max(map(len, _lists().values()))


def carried_over(text: str, before: str, after: str) -> str:
    """What to read after a switch of models: `text`, or the new model's first example if `text` is one of the old's."""
    old, new = examples(before), examples(after)
    return new[0] if old != new and text in old else text
