"""Sparsemax within segments, column by column, as in `kernels.softmax`."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import SEGMENTS, kernel
from dynbatch.kernels.segment import combine_segments, reduce_segments


@kernel(c=SEGMENTS, cuda=SEGMENTS, reduced=())
def sparsemax(x: Array, offsets: Array, out: Array) -> None:
    """out_i = max(x_i - τ, 0), with τ such that each segment and column adds up to 1.

    τ is found without sorting: what lies below (Σ x - 1) / n of the n numbers in question is out of
    question, until none is. The first of them are those within 1 of the maximum.

    Args:
        out: (N, D), overwritten; may be `x`. NaN where a whole segment is -inf, as of softmax.

    Source: Martins & Astudillo 2016, arXiv:1602.02068; the search is that of Michelot 1986, JOTA
            50(1), 195-200.
    """
    shape = (offsets.size - 1, x.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        combine_segments(np.subtract, x, _reduced(np.maximum, x, offsets, shape), offsets, out)
        support = out > -1
        while True:
            total = _reduced(np.add, np.where(support, out, 0), offsets, shape)
            count = _reduced(np.add, support.astype(x.dtype), offsets, shape)
            threshold = (total - 1) / count
            above = np.empty_like(support)
            combine_segments(np.greater, out, threshold, offsets, above)
            above &= support
            if (above == support).all():
                break
            support = above
        combine_segments(np.subtract, out, threshold, offsets, out)
    np.maximum(out, 0, out=out)


@kernel(c=SEGMENTS, cuda=SEGMENTS, reduced=())
def sparsemax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> None:
    """out_i = dy_i - the mean of dy where y is not 0; 0 where y is 0."""
    shape = (offsets.size - 1, y.shape[1])
    support = (y != 0).astype(y.dtype)
    mean = _reduced(np.add, dy * support, offsets, shape)
    mean /= _reduced(np.add, support, offsets, shape)
    combine_segments(np.subtract, dy, mean, offsets, out)
    np.multiply(out, support, out=out)


def _reduced(ufunc: np.ufunc, rows: Array, offsets: Array, shape: tuple[int, int]) -> Array:
    made = np.empty(shape, rows.dtype)
    reduce_segments(ufunc, rows, offsets, made, empty=1)  # so that no division by 0 is made
    return made
