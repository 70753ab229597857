"""Positions tab: how a Transformer knows the order of its tokens, in the loaded checkpoint and in general."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.positions import bias, distance, encoding, extrapolate, order, rotation, this_model

SECTIONS = (
    this_model.SECTION,
    order.SECTION,
    encoding.SECTION,
    rotation.SECTION,
    bias.SECTION,
    distance.SECTION,
    extrapolate.SECTION,
)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("positions", "tab.positions", frozenset(), build)
