"""Rows by index: gathered, and summed where indices repeat. No order of threads is in a sum."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.indexing import bincount, take
from dynbatch.kernels.narrow import widen
from dynbatch.kernels.runtime.dispatch import HOST, ROWS, kernel
from dynbatch.kernels.segment import blocks, groups, reduce_made, reduce_segments


@kernel(1, c=HOST, cuda=HOST)
def sum_rows_by_id(ids: Array, rows: Array) -> tuple[Array, Array]:
    """Sum the rows that share an id, deterministically, in order of position.

    Args:
        ids: (N,) int64.
    Returns:
        the distinct ids (K,), increasing, and their sums (K, D).
    """
    if not ids.size:
        return ids, rows[:0].copy()
    distinct, order, offsets = by_id(ids)
    sums = np.empty((distinct.size, rows.shape[1]), rows.dtype)
    if distinct.size == ids.size:
        gather_rows(rows, order, sums)
    else:
        reduce_made(np.add, lambda part: rows[order[part]], rows.shape[1], offsets, sums, 0)
    return distinct, sums


def by_id(ids: Array) -> tuple[Array, Array, Array]:
    """Distinct ids, the positions sorted by id, and where those of each id begin."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    is_first = np.ones(ids.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    return ordered[first], order, np.append(first, ids.size)


@kernel(cuda=ROWS)
def gather_rows(rows: Array, index: Array, out: Array) -> None:
    """out[n] = rows[index[n]].

    Args:
        rows:  (N, D); of the host upper halves too, which become the numbers that they are of.
        index: (M,) int64, 0 <= index < N; any order, duplicates allowed.
    """
    if rows.dtype == np.uint16 and out.dtype == np.float32:
        widen(rows[index].reshape(-1), out.reshape(-1))
        return
    # "clip" spares NumPy a buffer of the output's size: it checks nothing that is not checked yet.
    if index.size:
        take(rows, index, axis=0, out=out, mode="clip")


def taken_rows(rows: Array, index: Array) -> Array:
    """rows[index[n]], in an array of their own, where the rows are.

    Args:
        index: (M,) int64, 0 <= index < N; any order, duplicates allowed.
    """
    out: Array = device_of(rows).xp.empty((index.size, rows.shape[1]), rows.dtype)
    if index.size:
        gather_rows(rows, index, out)
    return out


@kernel(c=HOST, cuda=HOST)
def scatter_rows(rows: Array, index: Array, out: Array) -> None:
    """out[i] = sum of the rows[n] with index[n] == i: the gradient of `gather_rows`.

    Args:
        index: (M,) int64, 0 <= index < N.
    """
    out[...] = 0
    if not index.size:
        return
    distinct, order, offsets = by_id(index)
    for ids, part in groups(offsets, rows.shape[1]):
        sums = np.empty((ids.stop - ids.start, rows.shape[1]), rows.dtype)
        within = offsets[ids.start : ids.stop + 1] - part.start
        reduce_segments(np.add, rows[order[part]], within, sums, 0)
        out[distinct[ids]] = sums


@kernel(c=HOST, cuda=HOST)
def add_rows(rows: Array, index: Array, out: Array) -> None:
    """out[index[n]] += rows[n].

    Args:
        index: (M,) int64, strictly increasing, 0 <= index < N.
    """
    for part in blocks(rows.shape[0], rows.shape[1]):
        out[index[part]] += rows[part]


@kernel(c=HOST, cuda=HOST)
def add_rows_at(rows: Array, positions: Array, out: Array, unique: bool = False) -> None:
    """out[positions[n]] += rows[n]; positions may repeat, and the bits are reproducible."""
    if not unique and bincount(positions).max(initial=0) > 1:
        positions, rows = sum_rows_by_id(positions, rows)
    out[positions] += rows
