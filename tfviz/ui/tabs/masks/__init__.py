"""Masks tab, a workbench: sentences become a padded batch of the chosen model; its masks, seen from four sides."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfviz.ui.components.section import Section, no_controls, sections
from tfviz.ui.context import AppContext
from tfviz.ui.i18n import Translator
from tfviz.ui.tab import Tab
from tfviz.ui.tabs.masks import batch, bench, conventions, decode, model

SECTIONS = (batch.SECTION, conventions.SECTION, decode.SECTION, model.SECTION)


def build(ctx: AppContext) -> None:
    shared = bench.controls(ctx.t)
    sections(ctx, [_on_the_bench(part, shared) for part in SECTIONS])


def _on_the_bench(part: Section, shared: Mapping[str, Any]) -> Section:
    """A section without controls of its own has those above it."""

    def controls(t: Translator) -> dict[str, Any]:
        return dict(shared)

    return replace(part, controls=controls) if part.controls is no_controls else part


TAB = Tab("masks", "tab.masks", frozenset(), build)
