"""The answer of an encoder-decoder: what its decoder predicts at each position, how sure it is, what else it weighed.

`draw` turns a trace into the component's value, every number in words already; assets/js/answer.js shows it and says
how it talks to the Attention view.
"""

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.messages import ASSETS, sentences
from tfviz.ui.i18n import Translator, percent, percent_of_log, significant

if TYPE_CHECKING:
    from tfviz.introspection.trace import Answer, Candidate, Trace

TEMPLATE = '<div class="tv-answer" hidden></div>'
UNSURE = 0.5  # a whole answer below this probability is said to be a guess


def answer_labels(language: str) -> dict[str, str]:
    """What the panel itself says, in one language."""
    return {key: sentence for key, sentence in sentences(language).items() if key.startswith("answer.label.")}


def answer_panel(labels: Mapping[str, str], value: Any = None, elem_id: str = "answer") -> gr.HTML:
    """The component; hidden while its value is None."""
    return gr.HTML(
        value=value,
        html_template=TEMPLATE,
        css_template=(ASSETS / "css" / "answer.css").read_text(encoding="utf-8"),
        js_on_load=(ASSETS / "js" / "answer.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id=elem_id,
        labels=dict(labels),
    )


def draw(trace_id: str, trace: "Trace", t: Translator) -> dict[str, Any] | None:
    """The panel's value; None for a model that answers nothing."""
    answer = trace.answer
    if answer is None:
        return None
    with np.errstate(divide="ignore"):
        log_prob = float(np.log(answer.probs, dtype=np.float64).sum())  # a product may be too small for a float
    unsure = log_prob < log(UNSURE)
    own = answer.written or answer.text in {one.text for one in answer.candidates[:1]}  # what it would say itself
    whole = "answer.sure" if not unsure else "answer.unsure" if own else "answer.unlikely"
    return {
        "trace": trace_id,
        "text": answer.text,
        "written": answer.written,
        "about": t("answer.about.written" if answer.written else "answer.about.typed"),
        "unsure": unsure,
        "confidence": t(whole, percent=percent_of_log(log_prob).replace(" ", "\u00a0")),  # one word in its sentence
        "cells": [_cell(answer, i, t) for i in range(len(answer.tokens))],
        "candidates": [_candidate(answer, i, one, t) for i, one in enumerate(answer.candidates)],
    }


def _cell(answer: "Answer", i: int, t: Translator) -> dict[str, Any]:
    token, prob = answer.tokens[i], float(answer.probs[i])
    shown = list(answer.alternatives[i])
    labels = [label for label, _ in shown]
    if token.label not in labels:  # a typed target may be none of the most probable
        shown.append((token.label, prob))
        labels.append(token.label)
    chosen = labels.index(token.label)
    rows = [
        {"text": label, "prob": p, "percent": percent(p), "chosen": place == chosen}
        for place, (label, p) in enumerate(shown)
    ]
    return {
        "text": token.text,
        "piece": token.piece,
        "special": token.special,
        "prob": prob,
        "label": t("answer.cell", token=token.label, percent=percent(prob), i=i),
        "position": t("answer.position", i=i),
        "alternatives": rows,
    }


def _candidate(answer: "Answer", i: int, one: "Candidate", t: Translator) -> dict[str, Any]:
    return {
        "rank": i + 1,
        "text": one.text,
        "shown": one.text == answer.text,
        "greedy": one.greedy,
        "finished": one.finished,
        "prob": float(np.exp(one.log_prob)),
        "percent": percent_of_log(one.log_prob),
        "log_prob": _minus(one.log_prob),
    }


def _minus(value: float) -> str:
    return significant(value).replace("-", "−", 1) if value < 0 else significant(value)
