"""Launches of `reduce.cu`: means, log-sum-exp and extrema of segments, and their gradients."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.segment import reduce_segments
from dynbatch.kernels.cuda.walks import over_segments, reduce_parts
from dynbatch.kernels.matrices import Segments, lengths_of


def mean_segments(x: Array, offsets: Segments, out: Array) -> None:
    rows, ends = reduce_parts(x, offsets, partial(reduce_segments, np.add, empty=0))
    lengths = None if rows is x else lengths_of(offsets)
    over_segments("mean_segments", (rows, out), ends, out.shape[1], lengths)


def logsumexp_segments(x: Array, offsets: Segments, out: Array) -> None:
    _logsumexp(*reduce_parts(x, offsets, _logsumexp), out)


def _logsumexp(x: Array, offsets: Segments, out: Array) -> None:
    over_segments("logsumexp_segments", (x, out), offsets, out.shape[1])


def first_extremum(largest: bool, x: Array, values: Array, offsets: Segments, out: Array) -> None:
    """out[k, d] = how many rows into segment k its maximum, or minimum, occurs first.

    The kernel finds the values itself and does not read `values`.
    """
    over_segments("first_extremum", (x, out), offsets, out.shape[1], largest)
