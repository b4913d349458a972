"""Means, log-sum-exp and extrema of segments, and their gradients.

A segment is a sentence's rows, one row's elements, or all elements; see `kernels.segment`.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import ELEMENTS, HOST, kernel
from dynbatch.kernels.segment import (
    combine_segments,
    first_in_segments,
    groups,
    reduce_made,
    reduce_segments,
    rows_of,
    spread_segments,
    sum_segments,
)


@kernel(cuda=HOST, reduced=("out",))
def mean_segments(x: Array, offsets: Array, out: Array) -> None:
    """out[k] = mean of the segment's rows; 0 for an empty segment."""
    sum_segments(x, offsets, out)
    np.divide(out, _divisors(offsets, out), out=out)


@kernel(cuda=ELEMENTS, reduced=("dy",))
def mean_segments_backward(dy: Array, offsets: Array, out: Array) -> None:
    """out[n] = dy[k] / length of k, for every row n of segment k."""
    spread_segments(dy / _divisors(offsets, dy), offsets, out)


def _divisors(offsets: Array, values: Array) -> Array:
    divisors: Array = np.maximum(np.diff(offsets), 1).astype(values.dtype)[:, None]
    return divisors


@kernel(cuda=HOST, reduced=("out",))
def logsumexp_segments(x: Array, offsets: Array, out: Array) -> None:
    """out[k] = log Σ exp(x[n]) over the segment's rows; -inf for an empty segment."""
    peak = np.empty_like(out)
    reduce_segments(np.maximum, x, offsets, peak, 0)
    peak[np.isinf(peak)] = 0  # a column of -inf is -inf, not NaN

    def scaled(rows: slice) -> Array:
        shifted: Array = x[rows] - rows_of(peak, offsets, rows)
        np.exp(shifted, out=shifted)
        return shifted

    reduce_made(np.add, scaled, x.shape[1], offsets, out, 0)
    with np.errstate(divide="ignore"):
        np.log(out, out=out)
    np.add(out, peak, out=out)


@kernel(cuda=ELEMENTS, reduced=("dy", "y"))
def logsumexp_segments_backward(dy: Array, x: Array, y: Array, offsets: Array, out: Array) -> None:
    """out[n] = dy[k] · exp(x[n] - y[k]); 0 in a column of -inf, NaN at an x of inf."""
    combine_segments(np.subtract, x, np.where(y == -np.inf, 0, y), offsets, out)
    np.exp(out, out=out)
    combine_segments(np.multiply, out, dy, offsets, out)


@kernel(1, cuda=HOST, reduced=("values", "out"))
def first_extremum(largest: bool, x: Array, values: Array, offsets: Array, out: Array) -> None:
    """out[k, d] = how many rows into segment k its maximum, or minimum, occurs first.

    Args:
        largest: whether `values` are maxima; else minima.
        values:  (K, D), the extrema.
        offsets: (K + 1,) strictly increasing, from 0 to N.
        out:     (K, D) int32 or int64, overwritten.
    """
    lengths = np.diff(offsets)
    if x.shape[1] == 1 and lengths.size and (lengths == lengths[0]).all():
        # Contiguous rows, the one case in which NumPy's own search is the fastest.
        rows = x.reshape(lengths.size, -1)
        np.copyto(out[:, 0], rows.argmax(axis=1) if largest else rows.argmin(axis=1))
    else:
        first_in_segments(x, values, offsets, out)


@kernel(cuda=ELEMENTS, reduced=("dy", "first"))
def extremum_backward(dy: Array, first: Array, offsets: Array, out: Array) -> None:
    """out[n, d] = dy[k, d] at the row that `first` names in segment k, else 0.

    Args:
        first:   (K, D) from `first_extremum`.
        offsets: (K + 1,) strictly increasing, from 0 to N.
    """
    out[...] = 0
    columns = np.arange(dy.shape[1])
    for part, _ in groups(offsets, dy.shape[1]):
        out[offsets[part, None] + first[part], columns] = dy[part]
