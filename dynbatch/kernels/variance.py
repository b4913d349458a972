"""Variances and standard deviations of segments (see `kernels.segment`)."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import ELEMENTS, kernel
from dynbatch.kernels.segment import combine_segments


@kernel(cuda=ELEMENTS, reduced=("mean",))
def squared_deviations(x: Array, mean: Array, offsets: Array, out: Array) -> None:
    """out[n] = (x[n] - mean[k])² for every row n of segment k."""
    combine_segments(np.subtract, x, mean, offsets, out)
    np.multiply(out, out, out=out)


@kernel(cuda=ELEMENTS, reduced=("dy", "mean", "y"))
def spread_backward(
    dy: Array, x: Array, mean: Array, y: Array, offsets: Array, correction: float, root: bool,
    out: Array,
) -> None:  # fmt: skip
    """out[n] = dy[k] dy/dx[n], with the deviation d_n = x[n] - mean[k] of row n of segment k.

    For the variance y = Σ d² / m, m = rows - correction, dy/dx[n] is 2 d_n / m; for its root d_n /
    (m y), and 0 where y is 0, as in PyTorch. m is 0 where it would be negative.

    Args:
        root: whether y is the standard deviation; else it is the variance, and not read.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        each = (1 if root else 2) / np.maximum(np.diff(offsets) - correction, 0)
        factors = dy * each.astype(dy.dtype)[:, None]
        if root:
            factors = np.where(y == 0, 0, factors / y)
        combine_segments(np.subtract, x, mean, offsets, out)
        combine_segments(np.multiply, out, factors, offsets, out)
