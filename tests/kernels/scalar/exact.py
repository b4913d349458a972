"""Expressions in numbers of any precision: a printer of its own, for mpmath."""

import math
import operator
from functools import cache
from typing import Any

import numpy as np
import pytest

from dynbatch.kernels.scalar.expressions import Expression, expand, parts

mp: Any = pytest.importorskip("mpmath", reason="compares with mpmath, which comes with PyTorch")
mp.mp.dps = 60


def normal_below(x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2 if abs(x) < 1000 else mp.mpf(x > 0)


def gauss(x: Any) -> Any:
    return mp.exp(-x * x) if abs(x) < 1000 else mp.mpf(0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


CALLS: dict[str, Any] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "negative": operator.neg, "power": operator.pow,
    "pow": operator.pow, "not_equal": operator.ne,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "equal": operator.eq, "both": operator.and_,
    "maximum": max, "minimum": min, "absolute": abs, "rint": mp.nint,
    "clip": lambda x, low, high: min(max(x, low), high),
    "where": lambda mask, a, b: a if mask else b,
    "reciprocal": lambda x: 1 / x, "hypot1": lambda x: mp.sqrt(1 + x * x), "gauss": gauss,
    "normal_below": normal_below, "normal_density": lambda x: gauss(x / mp.sqrt(2)),
    "sigmoid_below": sigmoid, "sigmoid_above": lambda x: sigmoid(-x),
}  # fmt: skip


def value_of(root: Expression, **variables: Any) -> Any:
    """The value of an expression; complex, or NaN, where it has none."""
    return _values(root, variables)[_steps(root)[-1]]


def size_of(root: Expression, **variables: Any) -> Any:
    """The size of the terms that a value is the sum of, where they cancel each other."""
    return _size(root, variables)


def terms_of(root: Expression, **variables: Any) -> Any:
    """The size of the terms of every sum and difference, of variables and numbers too."""
    return _size(root, variables, of_every_sum=True)


def is_number(value: Any) -> bool:
    return isinstance(value, mp.mpf) and mp.isfinite(value)


def errors(found: Any, exact: list[Any], sizes: list[Any]) -> Any:
    """The error of each number, in units of the last place of a size.

    What is below the least normal numbers needs only be as small, and what is beyond the greatest
    infinite.
    """
    finite, result = np.finfo(found.dtype), []
    least, greatest = mp.mpf(float(finite.tiny)) * 100, mp.mpf(float(finite.max))
    for number, truth, size in zip(found.tolist(), exact, sizes, strict=True):
        if abs(truth) > greatest:
            result.append(0.0 if number == mp.sign(truth) * mp.inf else math.inf)
        elif abs(size) < least:
            result.append(0.0 if abs(number) <= 2 * least else math.inf)
        else:
            with np.errstate(over="ignore"):
                unit = mp.mpf(float(np.spacing(found.dtype.type(float(abs(size))))))
            wrong = abs(mp.mpf(number) - truth) / unit
            result.append(float(wrong) if mp.isfinite(wrong) else math.inf)
    return np.array(result)


@cache
def _steps(root: Expression) -> list[Expression]:
    """The parts of an expression, operands first and the whole last."""
    return parts(expand(root))


def _values(root: Expression, variables: dict[str, Any]) -> dict[Expression, Any]:
    """The value of each part."""
    values: dict[Expression, Any] = {}
    for part in _steps(root):
        if part.op == "number":
            values[part] = mp.mpf(part.value)
        elif not part.operands:
            values[part] = variables[part.value]
        else:
            try:
                function = CALLS.get(part.op) or getattr(mp, part.op)
                values[part] = function(*[values[x] for x in part.operands])
            except (ZeroDivisionError, TypeError, ValueError):  # mpmath has no infinite result
                values[part] = mp.nan
    return values


def _size(root: Expression, variables: dict[str, Any], of_every_sum: bool = False) -> Any:
    values = _values(root, variables)
    sizes: dict[Expression, Any] = {}
    for part in _steps(root):
        operands = [(values[x], sizes[x]) for x in part.operands]
        sizes[part] = _size_of_part(part, values[part], operands, of_every_sum)
    return sizes[_steps(root)[-1]]


def _size_of_part(
    part: Expression, value: Any, operands: list[tuple[Any, Any]], of_every_sum: bool
) -> Any:
    if not operands:
        return abs(value)
    values, sizes = zip(*operands, strict=True)
    is_counted = part.op == "add" and all([x.operands for x in part.operands])
    if is_counted or (of_every_sum and part.op in ("add", "subtract")):
        return sizes[0] + sizes[1]
    if of_every_sum and part.op == "log" and part.operands[0].op == "add":
        return max(abs(value), sizes[0] / abs(values[0])) if values[0] else mp.inf
    if of_every_sum and part.op == "negative":
        return sizes[0]
    if of_every_sum and part.op == "where":
        return sizes[1 if values[0] else 2]
    if part.op in ("multiply", "divide") and mp.isfinite(value):
        factor = [one / abs(v) if v else 1 for v, one in zip(values, sizes, strict=True)]
        return abs(value) * math.prod(factor[: 1 + (part.op == "multiply")])
    return abs(value)
