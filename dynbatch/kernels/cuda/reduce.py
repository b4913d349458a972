"""Launches of `reduce.cu`: reductions of segments that are more than a sum, and their gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dynbatch.kernels.cuda.segment import reduce_segments
from dynbatch.kernels.cuda.segments import over_elements, over_segments, reduce_parts
from dynbatch.kernels.matrices import Segments, lengths_of


def mean_segments(x: Any, offsets: Segments, out: Any) -> None:
    """out[k] = mean of the segment's rows; 0 for an empty segment."""
    rows, ends = reduce_parts(x, offsets, partial(reduce_segments, np.add, empty=0))
    lengths = None if rows is x else lengths_of(offsets)
    over_segments("mean_segments", (rows, out), ends, out.shape[1], lengths)


def mean_segments_backward(dy: Any, offsets: Segments, out: Any) -> None:
    """out[n] = dy[k] / length of k, for every row n of segment k."""
    over_elements("mean_segments_backward", (dy,), offsets, out)


def logsumexp_segments(x: Any, offsets: Segments, out: Any) -> None:
    """out[k] = log Σ exp(x[n]) over the segment's rows; -inf for an empty segment."""
    _logsumexp(*reduce_parts(x, offsets, _logsumexp), out)


def _logsumexp(x: Any, offsets: Segments, out: Any) -> None:
    over_segments("logsumexp_segments", (x, out), offsets, out.shape[1])


def logsumexp_segments_backward(dy: Any, x: Any, y: Any, offsets: Segments, out: Any) -> None:
    """out[n] = dy[k] · exp(x[n] - y[k]); 0 in a column of -inf."""
    over_elements("logsumexp_segments_backward", (dy, x, y), offsets, out)


def first_extremum(largest: bool, x: Any, values: Any, offsets: Segments, out: Any) -> None:
    """out[k, d] = how many rows into segment k its maximum, or minimum, occurs first.

    The values are found again on the way to their places, so that `values` is not read.
    """
    over_segments("first_extremum", (x, out), offsets, out.shape[1], largest)


def extremum_backward(dy: Any, first: Any, offsets: Segments, out: Any) -> None:
    """out[n, d] = dy[k, d] at the row that `first` names in segment k, else 0."""
    over_elements("extremum_backward", (dy, first), offsets, out)
