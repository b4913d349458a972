"""Trigonometric and hyperbolic functions, their inverses, and the error function.

Angles are in radians. Outside of a function's domain its value is NaN, as in PyTorch.
"""

from __future__ import annotations

from dynbatch.kernels.scalar.function import primitive_function

sin = primitive_function("sin", "sin(x).")
cos = primitive_function("cos", "cos(x).")
tan = primitive_function("tan", "tan(x).")
asin = primitive_function("asin", "The angle from -π/2 to π/2 whose sine is x.")
acos = primitive_function("acos", "The angle from 0 to π whose cosine is x.")
atan = primitive_function("atan", "The angle from -π/2 to π/2 whose tangent is x.")
sinh = primitive_function("sinh", "(exp(x) - exp(-x)) / 2.")
cosh = primitive_function("cosh", "(exp(x) + exp(-x)) / 2.")
asinh = primitive_function("asinh", "The number whose sinh is x: log(x + √(x² + 1)).")
acosh = primitive_function(
    "acosh", "The number from 0 on whose cosh is x, which is at least 1: log(x + √(x² - 1))."
)
atanh = primitive_function("atanh", "The number whose tanh is x: log((1 + x) / (1 - x)) / 2.")
erf = primitive_function("erf", "2/√π times the integral of exp(-t²) for t from 0 to x.")
