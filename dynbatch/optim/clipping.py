"""Gradient clipping, by global norm or by value."""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np

from dynbatch.errors import NumericError
from dynbatch.optim.parameters import Parameters, named
from dynbatch.parameter import Array, Gradient, RowSparse

# OpenBLAS cuts longer dot products between its threads, and the sum would depend on their number.
_DOT_ELEMENTS = 8192


def clip_grad_norm_(parameters: Parameters, max_norm: float) -> float:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm = √(Σ g²) over all of them.

    Args:
        parameters: a `Module`, an `Optimizer`, parameters or pairs; frozen ones and those without
            gradient are left out.
        max_norm:   `math.inf` only measures.
    Returns:
        The norm before clipping; 0.0 when there are no gradients.
    Cost: one read of the gradients, and one read and write more when they are scaled.

    Raises:
        NumericError: the norm is NaN or infinite; the gradients are as they were.
        ValueError: `max_norm` is negative or NaN.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063, algorithm 1; 1e-6 as in PyTorch.
    """
    if not max_norm >= 0.0:
        raise ValueError(f"clip_grad_norm_: max_norm must be >= 0, got {max_norm!r}.")
    gradients = _gradients(parameters)
    squares = {name: sum_of_squares(_values(gradient)) for name, gradient in gradients}
    norm = sqrt(sum(squares.values()))
    if not isfinite(norm):
        raise NumericError(_not_finite(squares))
    scale = max_norm / (norm + 1e-6)
    if scale < 1.0:
        for _, gradient in gradients:
            values = _values(gradient)
            np.multiply(values, scale, out=values)
    return norm


def clip_grad_value_(parameters: Parameters, clip_value: float) -> None:
    """Clip every element of all gradients to [-clip_value, clip_value]. NaN stays NaN.

    Raises:
        ValueError: `clip_value` is negative or NaN.
    """
    if not clip_value >= 0.0:
        raise ValueError(f"clip_grad_value_: clip_value must be >= 0, got {clip_value!r}.")
    for _, gradient in _gradients(parameters):
        values = _values(gradient)
        np.clip(values, -clip_value, clip_value, out=values)


def sum_of_squares(values: Array) -> float:
    """Σ v²: float dot products over short runs, added in float64. Repeats bit for bit."""
    flat = values.reshape(-1)
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, _DOT_ELEMENTS):
            run = flat[start : start + _DOT_ELEMENTS]
            square = float(np.dot(run, run))
            if not isfinite(square):  # float32 overflows at |v| > 1.8e19, though the norm may not
                square = float(np.dot(run, run.astype(np.float64)))
            total += square
    return total


def _gradients(parameters: Parameters) -> list[tuple[str, Gradient]]:
    return [
        (name, parameter.grad)
        for name, parameter in named(parameters)
        if parameter.grad is not None and not parameter.frozen
    ]


def _values(gradient: Gradient) -> Array:
    return gradient.values if isinstance(gradient, RowSparse) else gradient


def _not_finite(squares: dict[str, float]) -> str:
    bad = [name for name, square in squares.items() if not isfinite(square)]
    bad = bad or [max(squares, key=lambda name: squares[name])]
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return (
        f"clip_grad_norm_: the gradient of {', '.join(map(repr, bad[:3]))}{more} is not finite "
        f"(sum of squares {squares[bad[0]]}).\n"
        "  rule: every gradient is finite\n"
        "  fix:  lower the learning rate or warm it up; look for log(0), 0/0 or √0 in the loss."
    )
