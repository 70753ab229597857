"""The tabs, in the order they stand on the page."""

from tfviz.ui.tab import Tab
from tfviz.ui.tabs import attention, cache, generate, layers, masks, positions, speed, step, training

TABS: tuple[Tab, ...] = (
    attention.TAB,
    step.TAB,
    positions.TAB,
    masks.TAB,
    layers.TAB,
    training.TAB,
    generate.TAB,
    cache.TAB,
    speed.TAB,
)
