"""Reductions over segments of packed rows, and back. Empty segments are ordinary input.

One primitive serves tokens, features and whole values: a segment is a sentence's rows, or, over the
flat elements, one row or one sentence's elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import narrowed, repeat
from dynbatch.kernels.matrices import Segments
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import ELEMENTS, HOST, SEGMENTS, kernel

# `reduceat` makes one inner loop along every row: best for narrow rows, but for 64 segments of 22
# rows of 2048 it takes 14 ms instead of 0.3. Above this width each segment, or each position, is
# one call. The bound does not look at the segments: a sum has the same bits in any mini-batch.
NARROW = 32
# Elements that kernels make beside their output at a time, or one segment: what the cache holds.
BLOCK = 1 << 17
# Elements of a function such as exp that take as long as handing work to a thread, several times.
WORTH_A_THREAD = 1 << 15
# The same of a sum, a product, a copy, which are bound by memory.
SUMS_WORTH_A_THREAD = 1 << 20
# A call for one position gathers rows first, and so costs about two calls for one segment.
POSITION_COST = 2


@kernel(1, c=HOST, cuda=HOST, reduced=("out",))
def reduce_segments(ufunc: np.ufunc, rows: Array, offsets: Array, out: Array, empty: float) -> None:
    """out[k] = rows[offsets[k]] ∘ … ∘ rows[offsets[k + 1] - 1], from first to last.

    Args:
        ufunc: np.add, np.maximum or np.minimum.
        empty: the result of a segment without rows.
    """
    lengths = np.diff(offsets)
    occupied = np.flatnonzero(lengths)  # reduceat misreads empty segments
    if occupied.size == lengths.size:
        _reduce_occupied(ufunc, rows, offsets[:-1], lengths, out)
        return
    out[...] = empty
    if occupied.size:
        reduced = np.empty((occupied.size, rows.shape[1]), rows.dtype)
        _reduce_occupied(ufunc, rows, offsets[:-1][occupied], lengths[occupied], reduced)
        out[occupied] = reduced


def _reduce_occupied(
    ufunc: np.ufunc, rows: Array, starts: Array, lengths: Array, out: Array
) -> None:
    count, width = out.shape
    if not count:
        return
    length = int(lengths[0])
    if width <= NARROW:
        ufunc.reduceat(rows, narrowed(starts), axis=0, out=out)
    elif (lengths == length).all():
        ufunc.reduce(rows.reshape(count, length, width), axis=1, out=out)
    else:
        _reduce_wide(ufunc, rows, starts, lengths, out)


def _reduce_wide(ufunc: np.ufunc, rows: Array, starts: Array, lengths: Array, out: Array) -> None:
    """Reduce long segments with a call each, short ones with a call for each position in them.

    The split minimises the cost of calls. Measured in float32, width 256: 512 segments of about
    3 rows 130 µs (reduceat 1050), 8 of about 200 rows 70 µs (reduceat 670).
    """
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    cost = np.arange(order.size + 1)
    cost[:-1] += POSITION_COST * ordered
    split = int(np.argmin(cost))
    long, short = order[:split], order[split:]
    for k, start, end in zip(
        long.tolist(), starts[long].tolist(), (starts + lengths)[long].tolist(), strict=True
    ):
        ufunc.reduce(rows[start:end], axis=0, out=out[k])
    if short.size:
        first = starts[short]
        partial = rows[first]
        positions = np.arange(1, ordered[split])
        reaching = np.searchsorted(-ordered[split:], -positions)  # segments longer than position
        for position, count in enumerate(reaching.tolist(), 1):
            ufunc(partial[:count], rows[first[:count] + position], out=partial[:count])
        out[short] = partial


def blocks(count: int, width: int) -> Iterator[slice]:
    """Ranges of `count` rows, of at most `BLOCK` elements or one row each."""
    rows = max(1, BLOCK // max(1, width))
    for start in range(0, count, rows):
        yield slice(start, min(count, start + rows))


def share_blocks(
    count: int,
    width: int,
    work: Callable[[slice], object],
    least: int = WORTH_A_THREAD,
) -> None:
    """Run `work` on all `blocks` of `count` rows; threads share them where it is worth it.

    Args:
        least: elements that are worth a thread.
    """
    spans = parallel.shards(count, -(-least // max(1, width)))

    def run(first: int, last: int) -> None:
        for part in blocks(last - first, width):
            work(slice(first + part.start, first + part.stop))

    parallel.run([partial(run, first, last) for first, last in spans])


def groups(offsets: Array, width: int) -> Iterator[tuple[slice, slice]]:
    """Groups of segments with at most `BLOCK` elements, or of one: segments and rows."""
    first, count = 0, offsets.size - 1
    if int(offsets[-1]) * width <= BLOCK:
        if count:
            yield slice(0, count), slice(0, int(offsets[-1]))
        return
    while first < count:
        most = offsets[first] + BLOCK // max(1, width)
        last = max(first + 1, int(np.searchsorted(offsets, most, side="right")) - 1)
        yield slice(first, last), slice(int(offsets[first]), int(offsets[last]))
        first = last


def rows_of(values: Array, offsets: Array, part: slice) -> Array:
    if part.start == part.stop:
        return values[:0]
    if part.start == 0 and part.stop == offsets[-1]:
        whole: Array = repeat(values, offsets[1:] - offsets[:-1], axis=0)
        return whole
    first = int(offsets.searchsorted(part.start, "right")) - 1
    last = int(offsets.searchsorted(part.stop))
    edges = offsets[first : last + 1].copy()
    edges[0], edges[-1] = part.start, part.stop
    repeated: Array = repeat(values[first:last], edges[1:] - edges[:-1], axis=0)
    return repeated


def reduce_made(
    ufunc: np.ufunc, make: Callable[[slice], Array], width: int, offsets: Array, out: Array,
    empty: float,
) -> None:  # fmt: skip
    """`reduce_segments` of rows that `make(rows)` computes for a few segments at a time."""
    if 0 < int(offsets[-1]) * width <= BLOCK:  # cutting would take as long as small sums
        reduce_segments(ufunc, make(slice(0, int(offsets[-1]))), offsets, out, empty)
        return
    for segments, rows in groups(offsets, width):
        within = offsets[segments.start : segments.stop + 1] - rows.start
        reduce_segments(ufunc, make(rows), within, out[segments], empty)


@kernel(c=HOST)
def combine_segments(
    ufunc: np.ufunc, rows: Array, values: Array, offsets: Array, out: Array
) -> None:
    """out[n] = ufunc(rows[n], values[k]) for every row n of segment k.

    Args:
        ufunc: a binary ufunc.
        out:   (N, D), overwritten; may be `rows`.
    """
    lengths = np.diff(offsets)
    count, width = values.shape
    if count and (lengths == lengths[0]).all():
        shape = (count, int(lengths[0]), width)
        ufunc(rows.reshape(shape), values[:, None], out=out.reshape(shape))
    else:
        for part in blocks(rows.shape[0], width):
            ufunc(rows[part], rows_of(values, offsets, part), out=out[part])


@kernel(c=SEGMENTS, cuda=ELEMENTS, reduced=("values",))
def spread_segments(values: Array, offsets: Array, out: Array) -> None:
    """out[n] = values[k] for every row n of segment k: the gradient of a sum."""
    lengths = np.diff(offsets)
    count, width = values.shape
    if count and (lengths == lengths[0]).all():
        np.copyto(out.reshape(count, int(lengths[0]), width), values[:, None])
    else:
        for part in blocks(out.shape[0], width):
            np.copyto(out[part], rows_of(values, offsets, part))


def sum_segments(rows: Array, offsets: Segments, out: Array) -> None:
    """out[k] = sum of rows[offsets[k]:offsets[k + 1]]; zero for an empty segment."""
    reduce_segments(np.add, rows, offsets, out, 0)


@kernel(c=HOST)
def first_in_segments(rows: Array, values: Array, offsets: Array, out: Array) -> None:
    """out[k, d] = how many rows into segment k the value values[k, d] occurs first.

    Args:
        values:  (K, D), each an element of its segment and column; a NaN matches a NaN.
        offsets: (K + 1,) strictly increasing, from 0 to N.
        out:     (K, D) int32 or int64, overwritten.
    """
    for segments, part in groups(offsets, rows.shape[1]):
        within = offsets[segments.start : segments.stop + 1] - part.start
        _first_in_group(rows[part], values[segments], within, out[segments])


def _first_in_group(rows: Array, values: Array, offsets: Array, out: Array) -> None:
    # NumPy's argmax along tokens is ten times slower: it copies each segment transposed.
    lengths = np.diff(offsets).astype(out.dtype)
    is_value = np.empty(rows.shape, bool)
    combine_segments(np.equal, rows, values, offsets, is_value)
    if np.isnan(values).any():
        is_value |= np.isnan(rows)
    # Rows left in the segment: among those that hold the value, the first has most.
    left = repeat(offsets[1:], lengths).astype(out.dtype)
    left -= np.arange(rows.shape[0], dtype=out.dtype)
    reduce_segments(np.maximum, is_value * left[:, None], offsets, out, 0)
    np.subtract(lengths[:, None], out, out=out)
