"""Training tab: how a Transformer is taught, one technique a section, each at work on models of ours."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.training import accumulation, clipping, dropout, precision, rate, smoothing, tying

SECTIONS = (
    rate.SECTION,
    smoothing.SECTION,
    clipping.SECTION,
    dropout.SECTION,
    tying.SECTION,
    precision.SECTION,
    accumulation.SECTION,
)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("training", "tab.training", frozenset(), build)
