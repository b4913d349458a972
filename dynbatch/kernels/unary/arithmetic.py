"""Negation, powers, logarithms, clipping and signs.

Results are inf and NaN where PyTorch's are; the executor has silenced NumPy's warnings of them.
"""

from __future__ import annotations

from dynbatch.kernels.scalar.expressions import Expression, make
from dynbatch.kernels.scalar.function import function, primitive_function

negative = primitive_function("negative", "-x.")
exp = primitive_function("exp", "exp(x).")
log = primitive_function("log", "Natural logarithm.")
sqrt = primitive_function("sqrt", "√x.")
absolute = primitive_function("absolute", "|x|; the derivative at 0 is 0.")
sign = primitive_function("sign", "1 where x > 0, -1 where x < 0, else x; no gradient passes.")


@function(slope=lambda: 1)
def round(x: Expression) -> Expression:
    """The whole number nearest to x, a half to the even one; the gradient passes as it is."""
    return make("rint", x)


@function(slope=lambda: 1)
def floor(x: Expression) -> Expression:
    """The greatest whole number up to x; the gradient passes as it is."""
    return make("floor", x)


@function(slope=lambda: 1)
def ceil(x: Expression) -> Expression:
    """The least whole number from x on; the gradient passes as it is."""
    return make("ceil", x)


@function(slope=lambda: None)
def detached(x: Expression) -> Expression:
    """x, without a gradient."""
    return x


@function()
def power(x: Expression, exponent: Expression) -> Expression:
    """x^exponent for a constant exponent."""
    return make("power", x, exponent)


@function()
def clip(x: Expression, low: Expression, high: Expression) -> Expression:
    """min(max(x, low), high); the derivative is 1 on the borders, as in PyTorch."""
    return make("clip", x, low, high)
