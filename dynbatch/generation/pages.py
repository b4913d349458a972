"""Where the rows lie that a sentence keeps while it is generated: pages of the project's pool.

A page has `rows` rows of all slots of one kind, one after the other in one array. The pages of a
sentence need not be neighbours, and sentences that began alike share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynbatch.backend import DType
from dynbatch.blocks.resumed import CacheSlot, SlotKind
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.memory.pool import Pool
from dynbatch.parameter import Array

ROWS = 32
"""Rows of a page of keys and values."""

Parts = list[tuple[Array, ...]]
"""Of each slot its rows, (rows, width) each."""


class Page:
    """The rows of each slot, and how many sentences read them."""

    __slots__ = ("address", "array", "parts", "readers")

    def __init__(self, array: Array, parts: Parts) -> None:
        self.array = array
        self.address = address(array) or 0
        self.parts = parts
        self.readers = 1


class Pages:
    """Lends the pages of some slots.

    Args:
        rows: of a page.

    Attributes:
        page_bytes: of one page.
        offsets:    where the rows of each slot begin in a page, in bytes.
        lent, most: pages on loan now, and at most.
    """

    def __init__(self, slots: Sequence[CacheSlot], rows: int, dtype: DType, pool: Pool) -> None:
        self.slots = slots
        self.rows = rows
        self._dtype = np.dtype(dtype)
        self._pool = pool
        self._elements = rows * sum([width for slot in slots for width in slot.widths])
        self.page_bytes = self._elements * self._dtype.itemsize
        widths = [rows * width * self._dtype.itemsize for slot in slots for width in slot.widths]
        starts = iter(np.cumsum([0, *widths]).tolist())
        self.offsets = [[next(starts) for _ in slot.widths] for slot in slots]
        self.lent = self.most = 0

    @property
    def lent_bytes(self) -> int:
        """Bytes on loan."""
        return self.lent * self.page_bytes

    def count(self, rows: int) -> int:
        """Pages that so many rows fill."""
        return -(-rows // self.rows) if self.slots else 0

    def take(self) -> Page:
        """A page with one reader, its numbers not set.

        Raises:
            OutOfMemory: the pool has no room for it.
        """
        array = self._pool.take(self._elements, self._dtype, "rows kept while generating")
        parts: Parts = []
        start = 0
        for slot in self.slots:
            arrays = []
            for width in slot.widths:
                end = start + self.rows * width
                arrays.append(array[start:end].reshape(self.rows, width))
                start = end
            parts.append(tuple(arrays))
        self.lent += 1
        self.most = max(self.most, self.lent)
        return Page(array, parts)

    def give(self, page: Page) -> None:
        """Count a reader less; without one the page goes back."""
        page.readers -= 1
        if not page.readers:
            page.parts = []
            array, page.array = page.array, np.empty(0)
            self._pool.give(array)
            self.lent -= 1

    def own(self, page: Page, filled: int) -> Page:
        """The page itself where nobody else reads it, else a copy of its first rows, in its place.

        Raises:
            OutOfMemory: the pool has no room for a copy.
        """
        if page.readers == 1:
            return page
        copy = self.take()
        for mine, theirs in zip(copy.parts, page.parts, strict=True):
            for target, source in zip(mine, theirs, strict=True):
                target[:filled] = source[:filled]
        self.give(page)
        return copy


class Caches:
    """The pages of a model: of rows that grow, of rows that are kept, of states."""

    def __init__(self, slots: Sequence[CacheSlot], dtype: DType, pool: Pool) -> None:
        of_kind = {kind: [slot for slot in slots if slot.kind is kind] for kind in SlotKind}
        self.grown = Pages(of_kind[SlotKind.GROWN], ROWS, dtype, pool)
        self.kept = Pages(of_kind[SlotKind.KEPT], ROWS, dtype, pool)
        self.states = Pages(of_kind[SlotKind.STATE], 1, dtype, pool)

    @property
    def lent_bytes(self) -> int:
        """Bytes of all pages on loan."""
        return self.grown.lent_bytes + self.kept.lent_bytes + self.states.lent_bytes

    @property
    def most_bytes(self) -> int:
        """The most bytes of each kind that were on loan at once, added up."""
        kinds = (self.grown, self.kept, self.states)
        return sum([pages.most * pages.page_bytes for pages in kinds])

    def bytes_of(self, rows: int, kept_rows: int) -> int:
        """Bytes of the pages of a sentence with so many rows."""
        grown, kept = self.grown, self.kept
        of_rows = grown.count(rows) * grown.page_bytes + kept.count(kept_rows) * kept.page_bytes
        return of_rows + self.states.page_bytes


class History:
    """What a sentence has left for its rows to come.

    Attributes:
        caches:      where its pages come from.
        length:      rows so far.
        grown, kept, state: its pages.
        kept_rows:   rows of each slot in those that are kept.
    """

    def __init__(self, caches: Caches) -> None:
        self.caches = caches
        self.grown: list[Page] = []
        self.kept: list[Page] = []
        self.kept_rows = [0] * len(caches.kept.slots)
        self.state: Page | None = None
        self.length = 0

    def bytes_for(self, rows: int) -> int:
        """Bytes that `reserve` takes from the pool."""
        grown, states = self.caches.grown, self.caches.states
        needed = grown.count(self.length + rows) - len(self.grown)
        filled = self.length % grown.rows
        needed += bool(filled and self.grown and self.grown[-1].readers > 1)
        is_ready = not states.slots or (self.state is not None and self.state.readers == 1)
        return needed * grown.page_bytes + (0 if is_ready else states.page_bytes)

    def reserve(self, rows: int) -> None:
        """Have room for so many more rows, and a state, that no other sentence reads.

        Raises:
            OutOfMemory: the pool has none; what was taken is kept until `close`.
        """
        grown, states = self.caches.grown, self.caches.states
        filled = self.length % grown.rows
        if filled and self.grown:
            self.grown[-1] = grown.own(self.grown[-1], filled)
        while len(self.grown) < grown.count(self.length + rows):
            self.grown.append(grown.take())
        if states.slots:
            if self.state is None:
                self.state = states.take()
                self.state.array[...] = 0
            self.state = states.own(self.state, 1)

    def begin(self, rows: Mapping[CacheSlot, Sequence[Array | None]]) -> None:
        """Keep what a sentence is given: what the sources of each slot have made, None for zeros.

        Raises:
            OutOfMemory: the pool has no room; what was taken is kept until `close`.
        """
        self.reserve(0)
        kept = self.caches.kept
        for number, slot in enumerate(kept.slots):
            arrays = [array for array in rows[slot] if array is not None]
            self.kept_rows[number] = len(arrays[0])
            while len(self.kept) < kept.count(max(1, len(arrays[0]))):
                self.kept.append(kept.take())
            write(self.kept, number, 0, arrays)
        for number, slot in enumerate(self.caches.states.slots):
            assert self.state is not None
            for part, array in zip(self.state.parts[number], rows[slot], strict=True):
                part[0] = 0 if array is None else array

    def fork(self) -> History:
        """A sentence that began alike; it shares all pages."""
        other = History(self.caches)
        other.length, other.kept_rows = self.length, self.kept_rows
        other.grown, other.kept, other.state = [*self.grown], [*self.kept], self.state
        for page in other._pages():
            page.readers += 1
        return other

    def _pages(self) -> list[Page]:
        return [*self.grown, *self.kept, *([] if self.state is None else [self.state])]

    def close(self) -> None:
        """Give all pages back; it is empty then."""
        caches = self.caches
        for pages, lent in ((caches.grown, self.grown), (caches.kept, self.kept)):
            for page in lent:
                pages.give(page)
        if self.state is not None:
            caches.states.give(self.state)
        self.grown, self.kept, self.state, self.length = [], [], None, 0


def write(pages: Sequence[Page], number: int, first: int, arrays: Sequence[Array]) -> None:
    """Write rows of a slot into its pages, from row `first` on."""
    done = 0
    while done < len(arrays[0]):
        parts = pages[0].parts[number]
        page, row = divmod(first + done, len(parts[0]))
        count = min(len(parts[0]) - row, len(arrays[0]) - done)
        for target, source in zip(pages[page].parts[number], arrays, strict=True):
            target[row : row + count] = source[done : done + count]
        done += count
