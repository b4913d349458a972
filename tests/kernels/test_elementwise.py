"""How far elementwise functions and their derivatives are from the truth, in the last places."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from dynbatch.kernels import elementwise
from tests.kernels.columns import columns

mp: Any = pytest.importorskip("mpmath", reason="compares with mpmath, which comes with PyTorch")
mp.mp.dps = 60


class Function(NamedTuple):
    """A function under test.

    Args:
        kernel:    of `kernels.elementwise`.
        value:     f(x) by mpmath.
        slope:     f' by mpmath, of the input or the output, as the kernel reads it.
        ulps:      the greatest error of a value, in float32 and in float64.
        slope_ulps: the same of a derivative.
        arguments: of the kernel.
    """

    kernel: elementwise.Unary
    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    ulps: float = 4
    slope_ulps: float = 6
    arguments: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return "_".join([self.kernel.name, *map(str, self.arguments)])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


FUNCTIONS = [
    Function(elementwise.sigmoid, sigmoid, lambda y: y * (1 - y)),
]


def points(dtype: Any) -> Any:
    """Both signs, from the smallest normal number to the greatest; most between 0.01 and 1000."""
    finite = np.finfo(dtype)
    sizes = np.concatenate(
        [
            np.geomspace(float(finite.tiny), float(finite.max) / 2, 40),
            np.geomspace(0.01, 1000, 160),
            [finite.tiny, finite.max, 0.5, 1, 2, 16, 17, 38, 87, 88.5, 700, 708],
        ]
    )
    return np.concatenate([sizes, -sizes]).astype(dtype)


def errors(found: Any, exact: list[Any]) -> Any:
    """Of each number, in units of the last place; 0 where both are too small, or both too large."""
    finite, result = np.finfo(found.dtype), []
    for number, truth in zip(found.tolist(), exact, strict=True):
        size = abs(truth)
        if size < finite.tiny or size > finite.max:
            limit = finite.tiny if size < finite.tiny else np.inf
            agrees = (
                abs(number) <= limit if size < finite.tiny else number == mp.sign(truth) * limit
            )
            result.append(0.0 if agrees else np.inf)
            continue
        unit = np.spacing(found.dtype.type(float(size)))
        result.append(float(abs(mp.mpf(number) - truth) / mp.mpf(float(unit))))
    return np.array(result)


def worst(x: Any, found: Any, exact: list[Any]) -> tuple[float, float]:
    wrong = errors(found, exact)
    wrong[np.isnan(wrong)] = np.inf
    return float(wrong.max()), float(x[wrong.argmax()])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_values_and_derivatives_are_good_to_the_last_places(function, dtype):
    x = points(dtype)
    x = x[[function.value(mp.mpf(v)) is not None for v in x.tolist()]]
    y, dx = np.empty_like(x), np.empty_like(x)
    with np.errstate(all="ignore"):
        elementwise.apply(function.kernel, x, y, *function.arguments)
        saved = x if function.kernel.reads == "input" else y
        elementwise.apply_backward(function.kernel, np.ones_like(x), saved, dx, *function.arguments)
    error, at = worst(x, y, [function.value(mp.mpf(v)) for v in x.tolist()])
    assert error <= function.ulps, f"a value is off by {error:.1f} units at {at}"
    keep = np.isfinite(saved)
    slopes = [function.slope(mp.mpf(v)) for v in saved[keep].tolist()]
    error, at = worst(x[keep], dx[keep], slopes)
    assert error <= function.slope_ulps, f"a derivative is off by {error:.1f} units at {at}"


UNARY = [f for f in vars(elementwise).values() if isinstance(f, elementwise.Unary)]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "power": (3.0,), "clip": (0.8, 1.2), "leaky_relu": (0.1,), "elu": (0.7,), "gelu": ("none",),
}  # fmt: skip


# np.negative of NumPy 2.4 is wrong where values are 4 floats or 8 doubles apart.
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", UNARY, ids=lambda kernel: kernel.name)
def test_columns_of_rows_of_any_width(kernel, dtype):
    arguments = ARGUMENTS.get(kernel.name, ())
    for x, dy in zip(columns(dtype, 0), columns(dtype, 1), strict=True):
        plain, plain_dy = x.copy(), dy.copy()
        expected, slope = np.empty_like(plain), np.empty_like(plain)
        kernel.forward(plain, expected, *arguments)
        kernel.forward(x, x, *arguments)
        np.testing.assert_allclose(x, expected, rtol=1e-6)
        kernel.backward(plain_dy, plain, slope, *arguments)
        x[...] = plain
        if kernel.inplace:
            kernel.backward(dy, x, dy, *arguments)
            np.testing.assert_allclose(dy, slope, rtol=1e-6)
        else:
            out = np.empty((7, 16), dtype)[:, : x.shape[1]]
            kernel.backward(dy, x, out, *arguments)
            np.testing.assert_allclose(out, slope, rtol=1e-6)
