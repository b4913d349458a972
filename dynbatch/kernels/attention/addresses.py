"""Rows that lie anywhere in memory, read and written by their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.indexing import repeat
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.move import row_index
from dynbatch.kernels.narrow import widen
from dynbatch.kernels.runtime.dispatch import ROWS, kernel
from dynbatch.kernels.runtime.precision import SHORT, round_to, upper_halves

SHORT_BYTES = 2


@kernel(1, c=ROWS, cuda=ROWS)
def read_rows(addresses: Array, out: Array, is_short: bool) -> None:
    """out[i] = the row at addresses[i].

    Args:
        addresses: (R,) int64, of rows of out's width and dtype.
        out:       (R, D).
        is_short:  the rows are of bfloat16, the upper halves of float32.
    """
    rows: Array = np.empty(out.shape, np.uint16 if is_short else out.dtype)
    first, size = address(rows) or 0, rows.shape[1] * rows.itemsize
    for number, source in enumerate(addresses.tolist()):
        ctypes.memmove(first + number * size, source, size)
    if is_short:
        short, rows = rows, np.empty(out.shape, out.dtype)
        widen(short.reshape(-1), rows.reshape(-1))
    out[...] = rows


@kernel(c=ROWS, cuda=ROWS)
def write_rows(rows: Array, addresses: Array, is_short: bool) -> None:
    """Write rows[i], (R, D), to addresses[i], (R,) int64; where `is_short`, rounded to bfloat16."""
    rows = upper_halves(round_to(rows, SHORT)) if is_short else np.ascontiguousarray(rows)
    first, size = address(rows) or 0, rows.shape[1] * rows.itemsize
    for number, target in enumerate(addresses.tolist()):
        ctypes.memmove(target, first + number * size, size)


class PageTable:
    """The pages in which K sentences keep rows, for a step that may add some.

    Args:
        bases:   (P,) int64, where each page begins; sentence after sentence.
        counts:  (K,) pages of each.
        lengths: (K,) rows of each so far, from its first page on.
        new:     (K,) rows that the step adds, for which there is room.
        rows:    of a page; on a GPU a power of two.
        gaps:    (K, 2): of each sentence a row, and how much further back that one and those
                 behind it lie in its pages. None where they lie side by side.

    Attributes:
        calls: what kernels know of the sentences, for the other slots in these pages.
    """

    def __init__(
        self, bases: Array, counts: Sequence[int], lengths: Array, new: Array, rows: int,
        gaps: Array | None = None,
    ) -> None:  # fmt: skip
        self.bases = bases
        self.firsts = np.cumsum([0, *counts])[:-1]
        self.lengths = lengths
        self.new = new
        self.rows = rows
        self.gaps = gaps
        self.calls: dict[Any, Any] = {}

    @cached_property
    def after(self) -> Array:
        """(K,) rows of each with the new ones."""
        return self.lengths + self.new

    def find(self, first: Array, counts: Array) -> tuple[Array, Array]:
        """The address of each row's page, and the row's place in it.

        Args:
            first:  (K,) of each sentence the first row.
            counts: (K,) and how many from there on.
        """
        rows = row_index(first, counts)
        if self.gaps is not None:
            splits, gaps = repeat(self.gaps, counts, axis=0).T
            rows = rows + np.where(rows >= splits, gaps, 0)
        pages, places = np.divmod(rows, self.rows)
        return self.bases[repeat(self.firsts, counts) + pages], places

    @cached_property
    def added(self) -> tuple[Array, Array]:
        """`find` of the new rows."""
        return self.find(self.lengths, self.new)

    @cached_property
    def _rows_added(self) -> dict[int, Array]:
        return {}

    def rows_added(self, row_bytes: int) -> Array:
        """(R,) where each new row is, of rows that begin with the page."""
        known = self._rows_added.get(row_bytes)
        if known is None:
            bases, places = self.added
            known = self._rows_added[row_bytes] = bases + places * row_bytes
        return known


class PagedRows(NamedTuple):
    """Rows of several widths that lie in pages: keys and values, say.

    table:    the pages.
    offsets:  where each kind of rows begins in a page, in bytes.
    widths:   of rows of each kind. Rows of one kind lie one behind the other in a page.
    is_short: they are of bfloat16, to which rows are rounded when they are written.
    """

    table: PageTable
    offsets: Sequence[int]
    widths: Sequence[int]
    is_short: bool = False

    @property
    def addresses(self) -> Array:
        """(P, kinds), where the rows of each kind begin in each page."""
        return np.add.outer(self.table.bases, self.offsets)

    def append(self, *arrays: Array) -> None:
        """Write the step's new rows of each kind, (R, width)."""
        for rows, offset, width in zip(arrays, self.offsets, self.widths, strict=True):
            places = self.table.rows_added(width * self._itemsize(rows)) + offset
            write_rows(rows, places, self.is_short)

    def _itemsize(self, like: Array) -> int:
        return SHORT_BYTES if self.is_short else like.itemsize

    def joined(self, like: Array, room: Array | None = None) -> list[Array]:
        """Copies of the rows of each kind, with the new ones, sentence after sentence.

        Args:
            like: an array of the copies' device and dtype.
            room: where the copies go, of one dimension; None for arrays of their own.
        """
        lengths = self.table.after
        bases, places = self.table.find(np.zeros_like(lengths), lengths)
        made: list[Array] = []
        for offset, width in zip(self.offsets, self.widths, strict=True):
            if room is None:
                made.append(device_of(like).xp.empty((bases.size, width), like.dtype))
            else:
                size = bases.size * width
                made.append(room[:size].reshape(bases.size, width))
                room = room[size:]
            rows = bases + (offset + places * (width * self._itemsize(like)))
            read_rows(rows, made[-1], self.is_short)
        return made
