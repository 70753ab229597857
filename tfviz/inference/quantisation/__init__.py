"""One weight matrix in few bits, three ways: rounding (RTN), GPTQ's error compensation and AWQ's scaling."""

from tfviz.inference.quantisation.awq import Scaled, awq
from tfviz.inference.quantisation.gptq import choose_damping, gptq, hessian
from tfviz.inference.quantisation.schemes import (
    Quantised,
    Scheme,
    distinct_levels,
    output_error,
    quantise,
    relative,
)

__all__ = [
    "Quantised",
    "Scaled",
    "Scheme",
    "awq",
    "choose_damping",
    "distinct_levels",
    "gptq",
    "hessian",
    "output_error",
    "quantise",
    "relative",
]
