"""Every figure function: arrays in, `go.Figure` out. Imports nothing of tfviz outside this package."""

from tfviz.figures.attention import attention_heatmap, head_overview
from tfviz.figures.cache import cache_memory, step_times, step_work, time_areas
from tfviz.figures.cache_variants import (
    allocation_growth,
    bytes_by_context,
    channel_sizes,
    layer_errors,
    mass_outside,
    write_times,
)
from tfviz.figures.generation import lens_distances, lens_ranks
from tfviz.figures.layers import activation_functions, layer_lines, layer_shares, length_map
from tfviz.figures.masks import mask_map
from tfviz.figures.norms import eps_curves, gradients_by_layer, last_layer_by_depth, norms_compared, value_histogram
from tfviz.figures.number_formats import format_ranges, gradient_histogram
from tfviz.figures.positions import matrices, position_curves, signed_heatmap
from tfviz.figures.speed_kernels import kernel_gains, kernel_memory, kernel_times
from tfviz.figures.speed_memory import memory_bars
from tfviz.figures.speed_precision import head_divergence, losses, speeds, weight_shares
from tfviz.figures.speed_quantisation import bits_curve, error_histogram, input_channels, level_histogram
from tfviz.figures.speed_recurrent import gradient_distances, pass_times, recall_accuracy
from tfviz.figures.speed_results import gain_dots
from tfviz.figures.speed_roofline import part_scatter, roofline
from tfviz.figures.speed_tiling import traffic_lines, traffic_parts
from tfviz.figures.steps import cost_by_length, dot_products, head_similarity, softness_by_width, variance_by_width
from tfviz.figures.techniques import (
    gradient_norms,
    mean_distances,
    norms_by_parameter,
    part_differences,
    probability_rows,
    stacked_counts,
    token_says,
)
from tfviz.figures.training import learning_rates, losses_by_confidence, target_distributions

__all__ = [
    "activation_functions",
    "allocation_growth",
    "attention_heatmap",
    "bits_curve",
    "bytes_by_context",
    "cache_memory",
    "channel_sizes",
    "cost_by_length",
    "dot_products",
    "eps_curves",
    "error_histogram",
    "format_ranges",
    "gain_dots",
    "gradient_distances",
    "gradient_histogram",
    "gradient_norms",
    "gradients_by_layer",
    "head_divergence",
    "head_overview",
    "head_similarity",
    "input_channels",
    "kernel_gains",
    "kernel_memory",
    "kernel_times",
    "last_layer_by_depth",
    "layer_errors",
    "layer_lines",
    "layer_shares",
    "learning_rates",
    "length_map",
    "lens_distances",
    "lens_ranks",
    "level_histogram",
    "losses",
    "losses_by_confidence",
    "mask_map",
    "mass_outside",
    "matrices",
    "mean_distances",
    "memory_bars",
    "norms_by_parameter",
    "norms_compared",
    "part_differences",
    "part_scatter",
    "pass_times",
    "position_curves",
    "probability_rows",
    "recall_accuracy",
    "roofline",
    "signed_heatmap",
    "softness_by_width",
    "speeds",
    "stacked_counts",
    "step_times",
    "step_work",
    "target_distributions",
    "time_areas",
    "token_says",
    "traffic_lines",
    "traffic_parts",
    "value_histogram",
    "variance_by_width",
    "weight_shares",
    "write_times",
]
