"""The words of the drawing `decode`, and why a text ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfviz.messages import sentences
from tfviz.ui.i18n import Translator

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.run import TokenStep

WORDS = (
    "player first back play pause next last speed slider step text prompt source target stop more again token "
    "others left after by_hand title prob drawn_prob surprise entropy took path cache perplexity bits nats chart "
    "chart_x chart_y matrix matrix_rows cell blocked reads branches branches_note total seed legend_surprise "
    "legend_reads instead cut pick waiting off end ends_with byte bytes"
).split()


def words(t: Translator) -> dict[str, str]:
    """Every sentence of the drawing; it fills in the values between braces itself."""
    known = sentences(t.language)
    return {word: known[f"steps.view.{word}"] for word in WORDS}


def said(steps: "Sequence[TokenStep]", of: int, ended: bool, halted: bool, t: Translator) -> str:
    """How far the text is, or why it ends."""
    if not ended or halted:
        return t("steps.halted" if ended else "steps.going", n=len(steps), of=of)
    if steps[-1].stopped == "max_new_tokens":
        return t("steps.ended.one" if len(steps) == 1 else "steps.ended", n=len(steps))
    return steps[-1].reason(t.language)
