"""Primitives that NumPy lacks: the normal distribution far into its tails, erf, σ(x) with σ(-x)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.scalar.constants import Constants

ROOT_2 = math.sqrt(2)
TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


class Approximation(NamedTuple):
    """(1 + √2 a) exp(a²/2) Q(a) ≈ Σ_k coefficients[k] u^k,  u = origin - slope / (a + middle).

    Q(a) is the probability of more than a. The left side lies between 0.5 and 0.65, so the sum's
    relative error is that of Q.

    Args:
        limit: of a: Q is 0 beyond, in the dtype.
        middle, origin, slope, coefficients: of a Chebyshev series in u, which is within [-1, 1].

    Source: the form is that of Shepherd & Laframboise 1981, Math. Comp. 36(153), 249-253, for erfc;
        the coefficients were computed with 50 digits. Their greatest relative error, with that of
        the sum in the dtype itself, is 2.3e-7 in float32 and 7.8e-16 in float64.
    """

    limit: float
    middle: float
    origin: float
    slope: float
    coefficients: tuple[float, ...]


APPROXIMATIONS = {
    "float32": Approximation(14.5, 3.0, 1.4137931, 7.24137931, (
        0.643168325, -0.0145263177, -0.084478356, 0.0605530457, -0.0155399823,
        -0.00169939285, 0.00142591278, 0.000158183927, -0.000112020853, -2.16261859e-05,
    )),
    "float64": Approximation(39, 5.0, 1.2564102564102564, 11.282051282051282, (
        0.6286469241036575, -0.05927810506771088, -0.020100547520337523, 0.0558236011381877,
        -0.054202465676889744, 0.03530617701935391, -0.01657128623758902,
        0.005317662403830154, -0.0008512929048121506, -0.0001395380192155402,
        0.00010727909163341552, -1.073975272450981e-05, -8.21283574104744e-06,
        2.1683110712207013e-06, 6.33459152490004e-07, -2.770310880498361e-07,
        -5.909638645684683e-08, 3.2442534088813084e-08, 6.407705128685264e-09,
        -3.407289201131862e-09, -5.169934842201846e-10, 2.364502631339428e-10,
    )),
}  # fmt: skip
# The leading bits of a number, so few that its square is exact.
_LEADING = {
    "float32": (np.int32, np.int32(-(1 << 12))),
    "float64": (np.int64, np.int64(-(1 << 27))),
}

_UNITS = Constants((1, -1))
_SERIES = {name: Constants(each.coefficients) for name, each in APPROXIMATIONS.items()}
_TERMS_NEAR_0 = Constants([(-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(13)])


def tail(x: Array) -> tuple[Array, Array]:
    """Q(|x|) = ½ erfc(|x| / √2), and exp(-x²/2)."""
    approximation = APPROXIMATIONS[x.dtype.name]
    a = np.minimum(np.abs(x), x.dtype.type(approximation.limit))
    u = approximation.origin - approximation.slope / (a + approximation.middle)
    sum_ = _sum_of_powers(u, _SERIES[x.dtype.name][x.dtype])
    density = exp_of_square(a, 0.5)
    np.divide(sum_, 1 + ROOT_2 * a, out=sum_)
    np.multiply(sum_, density, out=sum_)
    return sum_, density


def distribution(x: Array) -> tuple[Array, Array]:
    """The probability of less than x, Φ(x) = ½ erfc(-x / √2), and exp(-x²/2)."""
    above, density = tail(x)
    result: Array = np.where(x > 0, 1 - above, above)
    return result, density


def exp_of_square(a: Array, factor: float) -> Array:
    """exp(-factor a²). The rounding error of a² alone would cost 40 units in the last place.

    a² = b² + (a - b)(a + b), where b is the leading half of a, and b² has no rounding error.
    """
    integer, mask = _LEADING[a.dtype.name]
    b = (a.view(integer) & mask).view(a.dtype)
    rest = (a - b) * (a + b)
    np.multiply(rest, -factor, out=rest)
    np.exp(rest, out=rest)
    np.multiply(b, b, out=b)
    np.multiply(b, -factor, out=b)
    np.exp(b, out=b)
    result: Array = np.multiply(b, rest, out=b)
    return result


def gauss(x: Array, out: Array | None = None) -> Array:
    """exp(-x²)."""
    a = np.minimum(np.abs(x), x.dtype.type(40))  # beyond, it is 0
    return _put(exp_of_square(a, 1.0), out)


def erf(x: Array, out: Array | None = None) -> Array:
    """2/√π times the integral of exp(-t²) for t from 0 to x."""
    near = np.clip(x, -0.5, 0.5)
    above, _ = tail(x * x.dtype.type(ROOT_2))
    far = np.copysign(1 - 2 * above, x)
    return _put(np.where(np.abs(x) <= 0.5, _erf_near_0(near), far), out)


def _erf_near_0(x: Array) -> Array:
    """2/√π Σ_k (-1)^k x^(2k+1) / (k! (2k + 1)); where |x| <= 1/2 the next term is below 1e-18."""
    sum_ = _sum_of_powers(x * x, _TERMS_NEAR_0[x.dtype])
    result: Array = sum_ * x * x.dtype.type(TWO_OVER_ROOT_PI)
    return result


def _sum_of_powers(x: Array, coefficients: list[Array]) -> Array:
    """Σ_k coefficients[k] x^k, by Horner's rule."""
    *others, last = coefficients
    sum_ = np.full_like(x, last)
    for coefficient in reversed(others):
        np.multiply(sum_, x, sum_)
        np.add(sum_, coefficient, sum_)
    return sum_


def sigmoids(x: Array, are_both: bool = True) -> tuple[Array, Array]:
    """σ(x) and σ(-x), which is exact where σ(x) is near 1; without `are_both` σ(x) twice."""
    one, minus_one = _UNITS[x.dtype]
    below = np.multiply(x, minus_one)
    above = x.copy() if are_both else below
    for y in (below, above)[: 1 + are_both]:
        np.exp(y, y)
        np.add(y, one, y)
        np.divide(one, y, y)
    return below, above


def _put(result: Array, out: Array | None) -> Array:
    if out is not None:
        np.copyto(out, result)
    return result if out is None else out
