"""Every figure function: arrays in, `go.Figure` out. Imports nothing of tfviz outside this package."""

from tfviz.figures.attention import attention_heatmap, head_overview
from tfviz.figures.training import learning_rates, losses_by_confidence, target_distributions

__all__ = ["attention_heatmap", "head_overview", "learning_rates", "losses_by_confidence", "target_distributions"]
