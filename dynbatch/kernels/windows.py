"""Windows of neighbouring rows that slide over each segment: unfolding and pooling.

Every kernel is one pass for each position inside the window, over all windows of the batch, some at
a time. One pass touches no row twice, so gradients need neither sorting nor atomics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels.move import row_index
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.segment import blocks


def count_windows(rows: int, size: int, stride: int, padding: int = 0) -> int:
    """The number of windows in a segment of `rows` rows with `padding` rows on either side."""
    return max(0, (rows + 2 * padding - size) // stride + 1)


class WindowTable(NamedTuple):
    """The positions of a mini-batch's windows.

    offsets: (K + 1,) rows of each segment, from 0 to N.
    ends:    (K + 1,) windows of each segment, from 0 to M.
    size:    rows of a window.
    stride:  rows from one window of a segment to the next.
    padding: rows by which the first window begins before its segment.
    """

    offsets: Array
    ends: Array
    size: int
    stride: int
    padding: int = 0

    def starts(self) -> Array:
        """(M,) first row of every window; outside its segment if in the padding."""
        return row_index(self.offsets[:-1] - self.padding, np.diff(self.ends), self.stride)

    def inside(self, rows: Array) -> Array:
        """(M,) whether one row of each window lies in the window's segment."""
        counts = np.diff(self.ends)
        low, high = repeat(self.offsets[:-1], counts), repeat(self.offsets[1:], counts)
        is_inside: Array = (rows >= low) & (rows < high)
        return is_inside


@kernel(cuda=HOST)
def unfold(x: Array, windows: WindowTable, out: Array) -> None:
    """out[m] = the rows of window m side by side; rows outside its segment are zero."""
    starts, size = windows.starts(), windows.size
    parts = out.reshape(starts.size, size, x.shape[1])
    for position in range(size):
        rows = starts + position
        inside = windows.inside(rows)
        whole = inside.all()
        for part in blocks(rows.size, x.shape[1]):
            into = parts[part, position]
            if whole:
                into[...] = x[rows[part]]
            else:
                into[...] = 0
                into[inside[part]] = x[rows[part][inside[part]]]


@kernel(cuda=HOST)
def unfold_backward(dy: Array, windows: WindowTable, out: Array) -> None:
    """out[n] = sum of row n's copies in `dy`; rows outside are left out."""
    out[...] = 0
    starts, size = windows.starts(), windows.size
    parts = dy.reshape(starts.size, size, out.shape[1])
    for position in range(size):
        rows = starts + position
        held = np.flatnonzero(windows.inside(rows))
        for part in blocks(held.size, out.shape[1]):
            out[rows[held[part]]] += parts[held[part], position]


@kernel(cuda=HOST)
def max_pool(x: Array, windows: WindowTable, out: Array, argmax: Array | None) -> None:
    """out[m] = maximum of the rows of window m, column by column.

    Args:
        windows: without padding.
        argmax:   (M, D) integers as wide as x's elements, overwritten with the first maximum's
            number in its window, or None.
    """
    starts = windows.starts()
    if argmax is not None:
        argmax[...] = 0
    for part in blocks(*out.shape):
        y, first = out[part], starts[part]
        np.copyto(y, x[first])
        for position in range(1, windows.size):
            rows = x[first + position]
            if argmax is not None:
                # A later position is the larger number; masked copies are ten times slower.
                later = (rows > y) * argmax.dtype.type(position)
                np.maximum(argmax[part], later, out=argmax[part])
            np.maximum(y, rows, out=y)


@kernel(cuda=HOST)
def max_pool_backward(dy: Array, windows: WindowTable, argmax: Array, out: Array) -> None:
    """out[n] = sum of dy over the windows whose maximum is in row n, column by column.

    Args:
        argmax: (M, D) from `max_pool`.
    """
    out[...] = 0
    starts = windows.starts()
    for position in range(windows.size):
        for part in blocks(*dy.shape):
            out[starts[part] + position] += dy[part] * (argmax[part] == position)


@kernel(cuda=HOST)
def mean_pool(x: Array, windows: WindowTable, out: Array) -> None:
    """out[m] = mean of the rows of window m.

    Args:
        windows: without padding.
    """
    starts = windows.starts()
    for part in blocks(*out.shape):
        y, first = out[part], starts[part]
        np.copyto(y, x[first])
        for position in range(1, windows.size):
            np.add(y, x[first + position], out=y)
        np.multiply(y, 1 / windows.size, out=y)


@kernel(cuda=HOST)
def mean_pool_backward(dy: Array, windows: WindowTable, out: Array) -> None:
    """out[n] = sum of dy / size over the windows that hold row n."""
    out[...] = 0
    starts = windows.starts()
    share = dy.dtype.type(1 / windows.size)
    for position in range(windows.size):
        for part in blocks(*dy.shape):
            out[starts[part] + position] += dy[part] * share
