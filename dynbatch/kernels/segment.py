"""Sums over segments of packed rows. Empty segments are ordinary: their sum is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


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
    return ordered[first], np.add.reduceat(gathered, first, axis=0)


def sum_segments(rows: Array, offsets: Array, out: Array) -> None:
    """out[k] = sum of rows[offsets[k]:offsets[k + 1]].

    Args:
        rows:    (N, D).
        offsets: (K + 1,) non-decreasing, from 0 to N.
        out:     (K, D), overwritten.
    """
    lengths = np.diff(offsets)
    occupied = lengths > 0  # reduceat misreads empty segments
    if occupied.all():
        if lengths.size:
            np.add.reduceat(rows, offsets[:-1], axis=0, out=out)
        return
    out[...] = 0
    if occupied.any():
        out[occupied] = np.add.reduceat(rows, offsets[:-1][occupied], axis=0)
