"""Windows of neighbouring rows that slide over each segment: unfolding and pooling.

Every kernel is one pass for each position inside the window, over all windows of the batch at once.
Within one pass no row is met twice, so gradients need no sorting and no atomics.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.kernels.dispatch import twin
from dynbatch.kernels.move import row_index

Array = np.ndarray[Any, np.dtype[Any]]


def count_windows(rows: int, size: int, stride: int, padding: int = 0) -> int:
    """Windows in a segment of `rows` rows with `padding` rows on either side; 0 if none fits."""
    return max(0, (rows + 2 * padding - size) // stride + 1)


def window_starts(offsets: Array, counts: Array, stride: int, padding: int = 0) -> Array:
    """First row of every window, as a row of the packed input; in the padding it lies outside.

    Args:
        offsets: (K + 1,) of the input.
        counts:  (K,) windows of each segment.
    Returns:
        (M,) int64, M = Σ counts.
    """
    return row_index(offsets[:-1] - padding, counts, stride)


@twin()
def unfold(x: Array, starts: Array, low: Array, high: Array, size: int, out: Array) -> None:
    """out[m] = rows starts[m], …, starts[m] + size - 1 side by side; rows outside are zero.

    Args:
        x:         (N, D).
        starts:    (M,) first row of each window.
        low, high: (M,) rows of the window's segment, from low to before high.
        out:       (M, size · D), overwritten.
    """
    parts = out.reshape(starts.size, size, x.shape[1])
    for position in range(size):
        rows = starts + position
        inside = (rows >= low) & (rows < high)
        if inside.all():
            parts[:, position] = x[rows]
        else:
            parts[:, position] = 0
            parts[inside, position] = x[rows[inside]]


@twin()
def unfold_backward(
    dy: Array, starts: Array, low: Array, high: Array, size: int, out: Array
) -> None:
    """out[n] = sum of row n's copies in `dy`; rows outside are left out.

    Args:
        dy:        (M, size · D) gradient of the windows.
        starts:    (M,) first row of each window; within a segment they increase.
        low, high: (M,) rows of the window's segment, from low to before high.
        out:       (N, D), overwritten with the gradient of x.
    """
    out[...] = 0
    parts = dy.reshape(starts.size, size, out.shape[1])
    for position in range(size):
        rows = starts + position
        inside = (rows >= low) & (rows < high)
        out[rows[inside]] += parts[inside, position]


@twin()
def max_pool(x: Array, starts: Array, size: int, out: Array, place: Array | None) -> None:
    """out[m] = maximum of rows starts[m], …, starts[m] + size - 1, column by column.

    Args:
        x:      (N, D).
        starts: (M,) first row of each window; every window lies inside its segment.
        out:    (M, D), overwritten.
        place:  (M, D) integers, overwritten with the first maximum's number in its window, or None.
    """
    np.copyto(out, x[starts])
    if place is not None:
        place[...] = 0
    for position in range(1, size):
        rows = x[starts + position]
        if place is not None:
            # A later position is the larger number; masked copies are ten times slower.
            np.maximum(place, (rows > out) * place.dtype.type(position), out=place)
        np.maximum(out, rows, out=out)


@twin()
def max_pool_backward(dy: Array, starts: Array, size: int, place: Array, out: Array) -> None:
    """out[n] = sum of dy over the windows whose maximum is in row n, column by column.

    Args:
        dy:     (M, D).
        starts: (M,) first row of each window; within a segment they increase.
        place:  (M, D) from `max_pool`.
        out:    (N, D), overwritten with the gradient of x.
    """
    out[...] = 0
    for position in range(size):
        out[starts + position] += dy * (place == position)


@twin()
def mean_pool(x: Array, starts: Array, size: int, out: Array) -> None:
    """out[m] = mean of rows starts[m], …, starts[m] + size - 1.

    Args:
        x:      (N, D).
        starts: (M,) first row of each window; every window lies inside its segment.
        out:    (M, D), overwritten.
    """
    np.copyto(out, x[starts])
    for position in range(1, size):
        np.add(out, x[starts + position], out=out)
    np.multiply(out, 1 / size, out=out)


@twin()
def mean_pool_backward(dy: Array, starts: Array, size: int, out: Array) -> None:
    """out[n] = sum of dy / size over the windows that hold row n.

    Args:
        dy:     (M, D).
        starts: (M,) first row of each window; within a segment they increase.
        out:    (N, D), overwritten with the gradient of x.
    """
    out[...] = 0
    each = dy * dy.dtype.type(1 / size)
    for position in range(size):
        out[starts + position] += each
