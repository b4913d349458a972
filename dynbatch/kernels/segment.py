"""Reductions over segments of packed rows, and back. Empty segments are ordinary input.

One primitive serves tokens, features and whole values: a segment is a sentence's rows, or, over the
flat elements, one row or one sentence's elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.kernels.dispatch import twin

Array = np.ndarray[Any, np.dtype[Any]]

# `reduceat` makes one inner loop along every row: best for narrow rows, but for 64 segments of 22
# rows of 2048 it takes 14 ms instead of 0.3. Above this width each segment, or each position, is
# one call. The bound does not look at the segments: a sum has the same bits in any mini-batch.
NARROW = 32
# A call for one position gathers rows first, and so costs about two calls for one segment.
POSITION_COST = 2


@twin(1)
def reduce_segments(ufunc: Any, rows: Array, offsets: Array, out: Array, empty: float) -> None:
    """out[k] = rows[offsets[k]] ∘ … ∘ rows[offsets[k + 1] - 1], from first to last.

    Args:
        ufunc:   np.add, np.maximum or np.minimum.
        rows:    (N, D).
        offsets: (K + 1,) non-decreasing, from 0 to N.
        out:     (K, D), overwritten.
        empty:   the result of a segment without rows.
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


def _reduce_occupied(ufunc: Any, rows: Array, starts: Array, lengths: Array, out: Array) -> None:
    count, width = out.shape
    if not count:
        return
    length = int(lengths[0])
    if width <= NARROW:
        ufunc.reduceat(rows, starts, axis=0, out=out)
    elif (lengths == length).all():
        ufunc.reduce(rows.reshape(count, length, width), axis=1, out=out)
    else:
        _reduce_wide(ufunc, rows, starts, lengths, out)


def _reduce_wide(ufunc: Any, rows: Array, starts: Array, lengths: Array, out: Array) -> None:
    """Long segments one call each; short ones together, one call for each position in them.

    The split is where the calls cost least. Measured in float32, width 256: 512 segments of about
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


def combine_segments(ufunc: Any, rows: Array, values: Array, offsets: Array, out: Array) -> None:
    """out[n] = ufunc(rows[n], values[k]) for every row n of segment k.

    Args:
        ufunc:   a binary ufunc.
        rows:    (N, D).
        values:  (K, D).
        offsets: (K + 1,) non-decreasing, from 0 to N.
        out:     (N, D), overwritten; may be `rows`.
    """
    lengths = np.diff(offsets)
    count, width = values.shape
    if count and (lengths == lengths[0]).all():
        shape = (count, int(lengths[0]), width)
        ufunc(rows.reshape(shape), values[:, None], out=out.reshape(shape))
    else:
        ufunc(rows, np.repeat(values, lengths, axis=0), out=out)


@twin()
def spread_segments(values: Array, offsets: Array, out: Array) -> None:
    """out[n] = values[k] for every row n of segment k: the gradient of a sum.

    Args:
        values:  (K, D).
        offsets: (K + 1,) non-decreasing, from 0 to N.
        out:     (N, D), overwritten.
    """
    lengths = np.diff(offsets)
    count, width = values.shape
    if count and (lengths == lengths[0]).all():
        np.copyto(out.reshape(count, int(lengths[0]), width), values[:, None])
    else:
        np.copyto(out, np.repeat(values, lengths, axis=0))


def sum_segments(rows: Array, offsets: Array, out: Array) -> None:
    """out[k] = sum of rows[offsets[k]:offsets[k + 1]]; zero for an empty segment.

    Args:
        rows:    (N, D).
        offsets: (K + 1,) non-decreasing, from 0 to N.
        out:     (K, D), overwritten.
    """
    reduce_segments(np.add, rows, offsets, out, 0)


def first_in_segments(rows: Array, values: Array, offsets: Array, out: Array) -> None:
    """out[k, d] = how many rows into segment k the value values[k, d] occurs first.

    Args:
        rows:    (N, D).
        values:  (K, D), each an element of its segment and column; a NaN is found as itself.
        offsets: (K + 1,) strictly increasing, from 0 to N.
        out:     (K, D) int32 or int64, overwritten.
    """
    # NumPy's argmax along tokens is ten times slower: it copies each segment transposed.
    lengths = np.diff(offsets).astype(out.dtype)
    found = np.empty(rows.shape, bool)
    combine_segments(np.equal, rows, values, offsets, found)
    if np.isnan(values).any():
        found |= np.isnan(rows)
    # Rows left in the segment: among those that hold the value, the first has most.
    left = np.repeat(offsets[1:], lengths).astype(out.dtype)
    left -= np.arange(rows.shape[0], dtype=out.dtype)
    reduce_segments(np.maximum, found * left[:, None], offsets, out, 0)
    np.subtract(lengths[:, None], out, out=out)


@twin(1)
def sum_rows_by_id(ids: Array, rows: Array) -> tuple[Array, Array]:
    """Sum of the rows that share an id; deterministic: in order of position.

    Args:
        ids:  (N,) int64.
        rows: (N, D).
    Returns:
        the distinct ids (K,), increasing, and their sums (K, D).
    """
    if not ids.size:
        return ids, rows[:0].copy()
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    gathered = rows[order]
    if first.size == ids.size:
        return ordered, gathered
    sums = np.empty((first.size, rows.shape[1]), rows.dtype)
    lengths = np.diff(np.append(first, ids.size))
    _reduce_occupied(np.add, gathered, first, lengths, sums)
    return ordered[first], sums


@twin()
def gather_rows(rows: Array, index: Array, out: Array) -> None:
    """out[n] = rows[index[n]].

    Args:
        rows:  (N, D).
        index: (M,) int64, 0 <= index < N; any order, duplicates allowed.
        out:   (M, D), overwritten.
    """
    # "clip" spares NumPy a buffer of the output's size: it checks nothing that is not checked yet.
    if index.size:
        np.take(rows, index, axis=0, out=out, mode="clip")


@twin()
def scatter_rows(rows: Array, index: Array, out: Array) -> None:
    """out[i] = sum of the rows[n] with index[n] == i: the gradient of `gather_rows`.

    Args:
        rows:  (M, D).
        index: (M,) int64, 0 <= index < N.
        out:   (N, D), overwritten.
    """
    out[...] = 0
    ids, sums = sum_rows_by_id(index, rows)
    out[ids] = sums


@twin()
def add_rows(rows: Array, index: Array, out: Array) -> None:
    """out[index[n]] += rows[n].

    Args:
        rows:  (M, D).
        index: (M,) int64, strictly increasing, 0 <= index < N.
        out:   (N, D).
    """
    out[index] += rows
