"""Functions of one value with their derivatives: activations, powers, logarithms, sines.

Node types are made from them, CUDA kernels are named after them, and `kernels.elementwise` runs
them. Once this package is imported, `FUNCTIONS` lists all of them.
"""

from dynbatch.kernels.unary import activations, arithmetic, trigonometric
from dynbatch.kernels.unary.function import FUNCTIONS, Argument, UnaryFunction, variant

__all__ = [
    "FUNCTIONS",
    "Argument",
    "UnaryFunction",
    "activations",
    "arithmetic",
    "trigonometric",
    "variant",
]
