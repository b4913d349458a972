"""Differentiates expressions: the rule of each primitive, and reverse mode over them."""

from __future__ import annotations

import math
from collections.abc import Callable

from dynbatch.kernels.scalar.expressions import (
    Expression,
    equal,
    gauss,
    hypot1,
    make,
    normal_density,
    not_equal,
    number,
    parts,
    pow,
    reciprocal,
    sigmoid_above,
    sigmoid_below,
    where,
)

Gradients = tuple["Expression | None", ...]

ROOT_2_PI = math.sqrt(2 * math.pi)


def _power(dy: Expression, y: Expression, x: Expression, exponent: Expression) -> Gradients:
    slope = make("power", x, exponent - 1) * exponent * dy
    return where(equal(exponent, 0), 0, slope), None  # also at x = 0, where 0 · x^-1 is NaN


def _pow(dy: Expression, y: Expression, a: Expression, b: Expression) -> Gradients:
    # 0 where b is 0, also where 1 / a is no number; 0^b is 0, or 1, nearby where b is from 0 on.
    base = where(equal(b, 0) & not_equal(0 * (1 / a), 0), 1, a)
    return dy * (pow(base, b - 1) * b), dy * (y * log(where(equal(a, 0) & (b >= 0), 1, a)))


def _clip(
    dy: Expression, y: Expression, x: Expression, low: Expression, high: Expression
) -> Gradients:
    return dy * where((x >= low) & (x <= high), 1, 0), None, None  # 1 at the borders, as in PyTorch


def _choose_more(dy: Expression, y: Expression, a: Expression, b: Expression) -> Gradients:
    return _with_ties(dy, a < b, equal(a, b)), _with_ties(dy, b < a, equal(a, b))


def _choose_less(dy: Expression, y: Expression, a: Expression, b: Expression) -> Gradients:
    return _with_ties(dy, a > b, equal(a, b)), _with_ties(dy, b > a, equal(a, b))


def _with_ties(dy: Expression, loses: Expression, is_tie: Expression) -> Expression:
    """The gradient goes to the value that was chosen; equal values get half each."""
    return where(loses, 0, where(is_tie, dy * 0.5, dy))


def _of(name: str) -> Callable[[Expression], Expression]:
    return lambda x: make(name, x)


sqrt, sin, cos, sinh, cosh = map(_of, ("sqrt", "sin", "cos", "sinh", "cosh"))
sign, log = _of("sign"), _of("log")

RULES: dict[str, Callable[..., Gradients]] = {
    "add": lambda dy, y, a, b: (dy, dy),
    "subtract": lambda dy, y, a, b: (dy, -dy),
    "multiply": lambda dy, y, a, b: (dy * b, dy * a),
    "divide": lambda dy, y, a, b: (dy / b, -(a / b / b * dy)),
    "negative": lambda dy, y, x: (-dy,),
    "power": _power,
    "pow": _pow,
    "maximum": _choose_more,
    "minimum": _choose_less,
    "clip": _clip,
    "where": lambda dy, y, mask, a, b: (None, where(mask, dy, 0), where(mask, 0, dy)),
    "sign": lambda dy, y, x: (None,),
    "absolute": lambda dy, y, x: (dy * sign(x),),
    "exp": lambda dy, y, x: (dy * y,),
    "log": lambda dy, y, x: (dy / x,),
    "log1p": lambda dy, y, x: (dy / (1 + x),),
    "expm1": lambda dy, y, x: (dy * (y + 1),),
    "sqrt": lambda dy, y, x: (dy / y * 0.5,),
    "tanh": lambda dy, y, x: (dy * (1 - y * y),),
    "sin": lambda dy, y, x: (dy * cos(x),),
    "cos": lambda dy, y, x: (dy * -sin(x),),
    "tan": lambda dy, y, x: (dy * (1 + y * y),),
    "asin": lambda dy, y, x: (dy * reciprocal(sqrt((1 - x) * (1 + x))),),  # exact near ±1
    "acos": lambda dy, y, x: (dy * -reciprocal(sqrt((1 - x) * (1 + x))),),
    "atan": lambda dy, y, x: (dy * reciprocal(1 + x * x),),
    "sinh": lambda dy, y, x: (dy * cosh(x),),
    "cosh": lambda dy, y, x: (dy * sinh(x),),
    "asinh": lambda dy, y, x: (dy * reciprocal(hypot1(x)),),
    "acosh": lambda dy, y, x: (dy * reciprocal(sqrt(x - 1) * sqrt(x + 1)),),
    "atanh": lambda dy, y, x: (dy * reciprocal((1 - x) * (1 + x)),),
    "erf": lambda dy, y, x: (dy * (gauss(x) * (2 / math.sqrt(math.pi))),),
    "normal_below": lambda dy, y, x: (dy * (normal_density(x) / ROOT_2_PI),),
    "sigmoid_below": lambda dy, y, x: (dy * (y * sigmoid_above(x)),),
    "sigmoid_above": lambda dy, y, x: (-(dy * (y * sigmoid_below(x))),),
}
"""The gradient of each operand of a primitive, from dy, its result y and the operands."""


def differentiate(y: Expression, x: Expression, dy: Expression) -> Expression | None:
    """The gradient of x, where y has the gradient dy; None where x does not reach y."""
    gradients = {y: dy}
    for part in reversed(parts(y)):
        if part not in gradients or not part.operands:
            continue
        rule = part.value.pull if part.op == "call" else RULES[part.op]
        pulled = rule(gradients[part], part, *part.operands)
        for operand, gradient in zip(part.operands, pulled, strict=True):
            if gradient is not None and not operand.is_uniform:
                before = gradients.get(operand)
                gradients[operand] = gradient if before is None else before + gradient
    return gradients.get(x)


def slope_times(body: Expression, x: Expression, dy: Expression) -> Expression | None:
    """dy times the slope of `body` by x.

    A single operation passes dy through its rule: log's dy / x. Of several the slope is made first,
    with 1 for dy, and dy joins once: pushed through all of them it would be dy a + dy b.
    """
    if all([not part.operands or part is x for part in body.operands]):
        return differentiate(body, x, dy)
    slope = differentiate(body, x, number(1))
    return None if slope is None else dy * slope
