"""Layers tab: the whole model as a map, and what stands around attention: feed-forward, residual stream, norms."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.layers import depth, feed_forward, map, norms, residual

SECTIONS = (map.SECTION, feed_forward.SECTION, residual.SECTION, norms.SECTION, depth.SECTION)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("layers", "tab.layers", frozenset(), build)
