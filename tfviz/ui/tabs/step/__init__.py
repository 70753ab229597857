"""Step by step: scaled dot-product attention and its many heads, with the real numbers of the sentence on the page."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.step import cost, flow, heads, scale

SECTIONS = (flow.SECTION, scale.SECTION, heads.SECTION, cost.SECTION)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("step", "tab.step", frozenset(), build)
