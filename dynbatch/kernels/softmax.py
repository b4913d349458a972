"""Softmax and log-softmax within segments, column by column.

Over features a segment is one row of a (N·D, 1) view; over tokens it is a sentence's rows. Passes
run over the whole batch: blocks that fit in the cache were measured and are not faster, since all
                          passes but `exp` are bound by the number of calls.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import SEGMENTS, kernel
from dynbatch.kernels.segment import combine_segments, reduce_made, reduce_segments


@kernel(c=SEGMENTS, cuda=SEGMENTS, reduced=())
def softmax(x: Array, offsets: Array, out: Array) -> None:
    """out_i = exp(x_i - m) / Σ_j exp(x_j - m), with m the maximum of the segment and column.

    Args:
        out: (N, D), overwritten; NaN where a whole segment is -inf, as in PyTorch.

    Source: safe softmax, as in Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 2.
    """
    _subtract_peak(x, offsets, out)
    np.exp(out, out=out)
    combine_segments(np.divide, out, _sums(out, offsets), offsets, out)


@kernel(c=SEGMENTS, cuda=SEGMENTS, reduced=())
def softmax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> None:
    """out = y ⊙ (dy - Σ_j dy_j y_j), summed within each segment and column."""
    np.multiply(dy, y, out=out)
    combine_segments(np.subtract, dy, _sums(out, offsets), offsets, out)
    np.multiply(out, y, out=out)


@kernel(c=SEGMENTS, cuda=SEGMENTS, reduced=())
def log_softmax(x: Array, offsets: Array, out: Array) -> None:
    """out_i = x_i - m - log Σ_j exp(x_j - m), with m the maximum of the segment and column.

    Args:
        out: (N, D), overwritten; NaN where a whole segment is -inf, as in PyTorch.
    """
    _subtract_peak(x, offsets, out)
    total = np.empty((offsets.size - 1, x.shape[1]), x.dtype)
    reduce_made(np.add, lambda rows: np.exp(out[rows]), x.shape[1], offsets, total, empty=1)
    combine_segments(np.subtract, out, np.log(total, out=total), offsets, out)


@kernel(c=SEGMENTS, cuda=SEGMENTS, reduced=())
def log_softmax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> None:
    """out_i = dy_i - exp(y_i) Σ_j dy_j, summed within each segment and column."""
    np.exp(y, out=out)
    combine_segments(np.multiply, out, _sums(dy, offsets), offsets, out)
    np.subtract(dy, out, out=out)


def _subtract_peak(x: Array, offsets: Array, out: Array) -> None:
    peak = np.empty((offsets.size - 1, x.shape[1]), x.dtype)
    reduce_segments(np.maximum, x, offsets, peak, 0)
    with np.errstate(invalid="ignore"):
        combine_segments(np.subtract, x, peak, offsets, out)


def _sums(x: Array, offsets: Array) -> Array:
    sums = np.empty((offsets.size - 1, x.shape[1]), x.dtype)
    reduce_segments(np.add, x, offsets, sums, empty=1)  # so that no division by 0 is made
    return sums
