"""Every figure function: arrays in, `go.Figure` out. Imports nothing of tfviz outside this package."""

from tfviz.figures.attention import attention_heatmap, head_overview

__all__ = ["attention_heatmap", "head_overview"]
