"""Speed tab: what each optimisation is worth on this machine and why, and every claim of the article, measured."""

from tfviz.ui.components.section import sections
from tfviz.ui.context import AppContext
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.speed import (
    claims,
    kernels,
    memory,
    precision,
    quantisation,
    recurrent,
    results,
    roofline,
    tiling,
)

SECTIONS = (
    kernels.SECTION,
    tiling.SECTION,
    precision.SECTION,
    quantisation.SECTION,
    roofline.SECTION,
    memory.SECTION,
    recurrent.SECTION,
    claims.SECTION,
    results.SECTION,
)


def build(ctx: AppContext) -> None:
    sections(ctx, SECTIONS)


TAB = Tab("speed", "tab.speed", frozenset(), build)
