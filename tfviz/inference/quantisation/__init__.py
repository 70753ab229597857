"""One weight matrix in few bits, three ways: rounding (RTN), GPTQ's error compensation and AWQ's scaling."""

from tfviz.inference.quantisation.awq import Scaled, awq
from tfviz.inference.quantisation.gptq import gptq, hessian
from tfviz.inference.quantisation.schemes import (
    Quantised,
    Scheme,
    distinct_levels,
    output_error,
    quantise,
    relative,
    step_error,
)

__all__ = [
    "Quantised",
    "Scaled",
    "Scheme",
    "awq",
    "distinct_levels",
    "gptq",
    "hessian",
    "output_error",
    "quantise",
    "relative",
    "step_error",
]
