"""KV cache tab: what a decode step computes and reads, what it saves, how caches differ, what fits into memory."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.cache import cost, planner, steps, variants

SECTIONS = (steps.SECTION, cost.SECTION, variants.SECTION, planner.SECTION)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("cache", "tab.cache", frozenset(), build)
