"""Tables and how to look things up in them: an unknown name is answered with the names that exist."""

from collections.abc import Mapping
from typing import TypeVar

from tfviz.errors import UnknownChoice

T = TypeVar("T")


def choose(table: Mapping[str, T], name: str, what: str) -> T:
    """`table[name]`, or `UnknownChoice` naming what was asked for and every allowed name."""
    try:
        return table[name]
    except KeyError:
        raise UnknownChoice("error.unknown_choice", what=what, name=name, choices=", ".join(table)) from None
