"""Norms and clipping of one gradient; `kernels/cuda/clipping.py` does all gradients of a step."""

from __future__ import annotations

from math import isfinite

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel

# OpenBLAS cuts longer dot products between its threads, and the sum would depend on their number.
_DOT_ELEMENTS = 8192


@kernel(c=HOST)
def sum_squares(values: Array) -> float:
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


def scale(values: Array, factor: float) -> None:
    """v ← factor · v."""
    np.multiply(values, factor, out=values)


def clip_values(values: Array, limit: float) -> None:
    """Clip v to [-limit, limit]; NaN stays NaN."""
    np.clip(values, -limit, limit, out=values)
