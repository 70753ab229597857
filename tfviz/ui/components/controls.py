"""What a control takes: anybody can send any value over the raw protocol, and each counts as the nearest possible one.

A number beyond a control's ends counts as the end, a text is cut at the box's length, an option that is none of the
list's is left out; and what has no nearest value, as an empty box, counts as what the control had at first.
"""

from math import inf
from sys import float_info
from typing import Any

import gradio as gr

MOST_CHARACTERS = 20_000  # of a text whose box says nothing else


def forgive(control: Any) -> Any:
    """The same control; it never refuses a value."""
    check, nearest = control.preprocess, _rule(control)
    if nearest is not None:
        control.preprocess = lambda payload: check(nearest(control, payload))
    return control


def _rule(control: Any) -> Any:
    rules = {
        gr.Slider: _number,
        gr.Number: _number,
        gr.CheckboxGroup: _options,
        gr.Checkbox: _truth,
        gr.Radio: _option,
        gr.Dropdown: _option,
        gr.Textbox: _text,
    }
    return next((rule for kind, rule in rules.items() if isinstance(control, kind)), None)


def _number(control: Any, payload: Any) -> Any:
    low = -inf if control.minimum is None else control.minimum
    high = inf if control.maximum is None else control.maximum
    if not isinstance(payload, int | float) or payload != payload:
        return control.value
    nearest = min(max(payload, low), high)
    return nearest if abs(nearest) <= float_info.max else control.value


def _truth(control: Any, payload: Any) -> Any:
    return payload if isinstance(payload, bool) else control.value


def _text(control: Any, payload: Any) -> str:
    return payload[: control.max_length or MOST_CHARACTERS] if isinstance(payload, str) else control.value or ""


def _option(control: Any, payload: Any) -> Any:
    if getattr(control, "allow_custom_value", False):
        return str(payload)[:MOST_CHARACTERS] if payload is not None else control.value
    return payload if payload in _values(control) else control.value


def _options(control: Any, payload: Any) -> Any:
    if not isinstance(payload, list):
        return control.value
    return [value for value in _values(control) if value in payload]


def _values(control: Any) -> list[Any]:
    return [value for _, value in control.choices]
