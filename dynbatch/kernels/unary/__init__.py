"""Functions of one value: activations, powers, logarithms, sines.

Each is one definition, from which its node type, its code for NumPy, C and CUDA, and derivatives of
every order are made: see `kernels.scalar`. Once this package is imported, `FUNCTIONS` has them all.
"""

from dynbatch.kernels.scalar.function import FUNCTIONS, Argument, Function, every_function
from dynbatch.kernels.unary import activations, arithmetic, trigonometric

__all__ = [
    "FUNCTIONS",
    "Argument",
    "Function",
    "activations",
    "arithmetic",
    "every_function",
    "trigonometric",
]
