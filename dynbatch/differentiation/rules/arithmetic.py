"""Rules of sums, differences, products, quotients and powers."""

from __future__ import annotations

import math

import numpy as np

from dynbatch import nodes as F
from dynbatch.differentiation.table import Made, rule
from dynbatch.nodes.arithmetic import (
    Add,
    Divide,
    DivideByNumber,
    DivideNumber,
    Multiply,
    RaiseNumber,
    RaiseTo,
    Scale,
    Shift,
    Subtract,
)
from dynbatch.nodes.node import Node


@rule(Add)
def _add(y: Add, dy: Node) -> tuple[Made, ...]:
    return lambda: dy, lambda: dy


@rule(Subtract)
def _subtract(y: Subtract, dy: Node) -> tuple[Made, ...]:
    return lambda: dy, lambda: -dy


@rule(Multiply)
def _multiply(y: Multiply, dy: Node) -> tuple[Made, ...]:
    a, b = y.inputs
    return lambda: dy * b, lambda: dy * a


@rule(Divide)
def _divide(y: Divide, dy: Node) -> tuple[Made, ...]:
    _, b = y.inputs
    return lambda: dy / b, lambda: -(dy * y / b)


@rule(RaiseTo)
def _raise_to(y: RaiseTo, dy: Node) -> tuple[Made, ...]:
    a, b = y.inputs

    def of_base() -> Node:
        # Where b is 0 so is the slope, also where a^-1 is infinite or NaN.
        is_finite = F.less(F.abs(1.0 / a), math.inf)
        base = F.where(F.greater(F.equal(b, 0.0), is_finite), 1.0, a)
        return dy * b * F.pow(base, b - 1.0)

    def of_exponent() -> Node:
        is_flat = F.equal(a, 0.0) * F.greater_equal(b, 0.0)  # 0^b is 0, or 1, nearby
        return dy * y * F.log(F.where(is_flat, 1.0, a))

    return of_base, of_exponent


@rule(Scale)
def _scale(y: Scale, dy: Node) -> tuple[Made, ...]:
    return (lambda: dy * y.number,)


@rule(Shift)
def _shift(y: Shift, dy: Node) -> tuple[Made, ...]:
    return (lambda: dy,)


@rule(DivideByNumber)
def _divide_by_number(y: DivideByNumber, dy: Node) -> tuple[Made, ...]:
    return (lambda: dy / y.number,)


@rule(DivideNumber)
def _divide_number(y: DivideNumber, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: -(dy * y / x),)


@rule(RaiseNumber)
def _raise_number(y: RaiseNumber, dy: Node) -> tuple[Made, ...]:
    if not y.number:  # flat from 0 on, infinitely steep below
        is_flat = F.greater_equal(y.inputs[0], 0.0)
        return (lambda: dy * y * F.log(F.where(is_flat, 1.0, 0.0)),)
    with np.errstate(invalid="ignore"):
        logarithm = float(np.log(np.float64(y.number)))  # NaN below 0
    return (lambda: dy * y * logarithm,)
