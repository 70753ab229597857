"""What a tab is: a key, a title, what it needs of a trace, and how its widgets are built."""

from collections.abc import Callable
from dataclasses import dataclass

from tfviz.ui.context import AppContext


@dataclass(frozen=True)
class Tab:
    """`needs` names kinds of attention; a tab needs any one of them. `title` is a key of the translation files."""

    key: str
    title: str
    needs: frozenset[str]
    build: Callable[[AppContext], None]
