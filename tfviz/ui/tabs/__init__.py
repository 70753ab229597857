"""The tabs, in the order they stand on the page."""

from tfviz.ui.tab import Tab
from tfviz.ui.tabs import attention, training

TABS: tuple[Tab, ...] = (attention.TAB, training.TAB)
