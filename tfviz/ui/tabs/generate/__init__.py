"""Generate tab: a decode step by step, beams as a tree, what each layer would say, and masked words filled in."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.generate import beams, fill, lens, steps

SECTIONS = (steps.SECTION, beams.SECTION, lens.SECTION, fill.SECTION)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("generate", "tab.generate", frozenset(), build)
