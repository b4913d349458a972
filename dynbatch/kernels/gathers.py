"""Rows gathered from several arrays by a table, and their gradients given back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import bincount, repeat
from dynbatch.kernels.rows import add_rows_at, gather_rows
from dynbatch.kernels.runtime.dispatch import HOST, kernel


class GatherTable(NamedTuple):
    """The rows that each of N rows is the sum of, its terms: M in all.

    Attributes:
        rows:   (M,) int64, their numbers in the arrays that they come from.
        of:     (M,) int64, which array each comes from; -1 for zeros. None: all from the first.
        starts: (N + 1,) int64, the first term of each row, and M; None where each has one.
    """

    rows: Array
    of: Array | None = None
    starts: Array | None = None

    def view(self) -> slice | None:
        """The rows of an array that all of them are, in its order; None where they are not."""
        rows = self.rows
        if self.of is not None or self.starts is not None or not rows.size:
            return None
        first, end = int(rows[0]), int(rows[0]) + rows.size
        return slice(first, end) if (rows == np.arange(first, end)).all() else None


class BoundTable(NamedTuple):
    """Rows of an array as sums of rows of others; or given back to these.

    array:   (N, D).
    table:   a `GatherTable` with the terms of each row; None for the same row of the one source.
    sources: (·, D) each; None where nobody asks for a gradient.
    adds:    whether sums are added to what is there, which a GPU alone does.
    """

    array: Array
    table: Any
    sources: Sequence[Any]
    adds: bool = False


@kernel(4, c=HOST, cuda=HOST)
def gather(sources: Sequence[Array], table: GatherTable, first: int, end: int, out: Array) -> None:
    """out[n] = the sum of the terms of row n, in their order, for first <= n < end.

    Args:
        sources: (·, D) arrays.
        out:     (N, D).
    """
    if table.of is None and table.starts is None:
        gather_rows(sources[0], table.rows[first:end], out[first:end])
        return
    out[first:end] = 0
    for number, terms, targets in _by_source(table, first, end):
        rows = sources[number][table.rows[terms]]
        if table.starts is None:
            out[targets] = rows
        else:
            add_rows_at(rows, targets, out)


@kernel(c=HOST, cuda=HOST)
def give_back(
    dy: Array, table: GatherTable, first: int, end: int, gradients: Sequence[Array | None]
) -> None:
    """Add dy[n] to the gradient of each term of row n, for n = first, …, end - 1 in this order.

    Args:
        gradients: of the arrays that `gather` reads; None where nobody asks for it.
    """
    for number, terms, targets in _by_source(table, first, end):
        gradient = gradients[number]
        if gradient is not None:
            add_rows_at(dy[targets], table.rows[terms], gradient)


def readers_table(count: int, tables: Sequence[tuple[GatherTable, int]]) -> GatherTable:
    """The table that gathers the gradient of an array from those of the rows that read it.

    Row r is the sum of row n of source k for each term of row n of table k that is row r of the
    array: first those of table 0, in the order of n.

    Args:
        count:  rows of the array.
        tables: with the number that the array has among those that the table reads.
    """
    read, rows, of = [], [], []
    for k, (table, number) in enumerate(tables):
        readers = np.arange(table.rows.size)
        if table.starts is not None:
            readers = repeat(np.arange(table.starts.size - 1), np.diff(table.starts))
        chosen = slice(None) if table.of is None else np.flatnonzero(table.of == number)
        read.append(table.rows[chosen])
        rows.append(readers[chosen])
        of.append(np.full(rows[-1].size, k))
    targets = np.concatenate(read)
    # NumPy sorts numbers of 16 bits in linear time.
    order = np.argsort(targets.astype(np.uint16) if count <= 1 << 16 else targets, kind="stable")
    starts = np.append(0, np.cumsum(bincount(targets, minlength=count)))
    sources = np.concatenate(of)[order] if len(tables) > 1 else None
    return GatherTable(np.concatenate(rows)[order], sources, starts)


def _by_source(table: GatherTable, first: int, end: int) -> Iterator[tuple[int, Array, Array]]:
    """The number of each array with the terms that come from it, and the rows that they are for."""
    terms = targets = np.arange(first, end)
    if table.starts is not None:
        starts = table.starts[first : end + 1]
        terms = np.arange(starts[0], starts[-1])
        targets = repeat(targets, np.diff(starts))
    if table.of is None:
        yield 0, terms, targets
        return
    of = table.of[terms]
    for number in np.unique(of[of >= 0]).tolist():
        chosen = np.flatnonzero(of == number)
        yield number, terms[chosen], targets[chosen]
