"""Pages of the project's pool, for the rows that sentences keep while they are generated.

A page has `rows` rows of all slots of one kind, one after the other in one array. The pages of a
sentence need not be neighbours, and sentences that began alike share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cupy_types import address_of
from dynbatch.generation.resumed import CacheSlot, SlotKind
from dynbatch.kernels import arrays
from dynbatch.kernels.attention.addresses import SHORT_BYTES
from dynbatch.kernels.attention.mask import UNBOUNDED
from dynbatch.memory.pool import Pool
from dynbatch.memory.resource import rounded

ROWS = 32
"""Rows of a page of keys and values: a power of two, as CUDA's attention wants them."""

TILE = 64
"""Keys that C's attention works on at a time, counted from the first: as in scores.h."""


class CacheMemory(NamedTuple):
    """Bytes of what sentences keep.

    live:     of the rows that are written and that may be read again; shared ones count once.
    reserved: of the pages on loan from the pool.
    peak:     the most that was reserved at once.
    weights:  of weights that are packed in bfloat16, beside them.
    """

    live: int
    reserved: int
    peak: int
    weights: int = 0


class Page:
    """An array of rows, on loan from a pool until nobody reads it, or nobody has the page.

    Attributes:
        address: of the array.
        readers: how many sentences read it. One that begins is counted before it has the page, one
            that ends until it has let go: an interrupt in between leaves one too many, so that the
            page is copied in vain, and never one too few.
    """

    __slots__ = ("__weakref__", "address", "array", "readers")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.address = address_of(array)
        self.readers = 1


class Lender:
    """Takes pages from a pool, and counts their bytes.

    Attributes:
        peak_bytes: the most that were on loan at once.
    """

    def __init__(self, pool: Pool, dtype: DType) -> None:
        self.dtype = np.dtype(dtype)
        self._pool = pool
        self._sets: list[tuple[set[ref[Page]], int]] = []
        self.peak_bytes = 0

    @property
    def lent_bytes(self) -> int:
        return sum([len(pages) * size for pages, size in self._sets])

    def set_of(self, page_bytes: int) -> set[ref[Page]]:
        self._sets.append((set(), page_bytes))
        return self._sets[-1][0]

    def take(self, elements: int, pages: set[ref[Page]]) -> Page:
        """A page with one reader, its numbers not set. It is on loan until nobody has it."""
        page = Page(self._pool.take(elements, self.dtype, "rows kept while generating"))
        pages.add(ref(page, pages.discard))  # of C: Python drops interrupts within its callbacks
        self.peak_bytes = max(self.peak_bytes, self.lent_bytes)
        return page

    def give(self, page: Page, pages: set[ref[Page]]) -> None:
        pages.discard(ref(page))
        self._pool.give(page.array)


class Pages:
    """Lends the pages of some slots.

    Args:
        rows:     of a page.
        reach:    a new row reads at most so many rows before it.
        is_short: rows are of bfloat16, half as wide.

    Attributes:
        row_bytes:  of a row of all slots.
        page_bytes: of one page, as the pool lends it.
        offsets:    where the rows of each slot begin in a page, in bytes.
    """

    def __init__(
        self, slots: Sequence[CacheSlot], rows: int, lender: Lender, reach: int = UNBOUNDED,
        is_short: bool = False,
    ) -> None:  # fmt: skip
        self.slots = slots
        self.rows = rows
        self.reach = reach
        self.is_short = is_short
        self._lender = lender
        itemsize = SHORT_BYTES if is_short else lender.dtype.itemsize
        widths = [width * itemsize for slot in slots for width in slot.widths]
        starts = iter(np.cumsum([0, *widths]).tolist())
        self.offsets = [[rows * next(starts) for _ in slot.widths] for slot in slots]
        self.row_bytes = sum(widths)
        self.page_bytes = rounded(rows * self.row_bytes) if slots else 0
        self._lent = lender.set_of(self.page_bytes)

    @property
    def lent(self) -> int:
        return len(self._lent)

    def count(self, rows: int) -> int:
        return -(-rows // self.rows) if self.slots else 0

    def take(self) -> Page:
        """A page with one reader, its numbers not set.

        Raises:
            OutOfMemory: the pool has no room for it.
        """
        elements = -(-self.rows * self.row_bytes // self._lender.dtype.itemsize)
        return self._lender.take(elements, self._lent)

    def shared(self, pages: Sequence[Page]) -> list[Page]:
        """The pages for one more sentence, which is counted before it has them."""
        for page in pages:
            page.readers += 1
        return [*pages]

    def leave(self, pages: Sequence[Page]) -> None:
        """Count a reader less, who has the pages no more; those without one go back."""
        for page in pages:
            page.readers -= 1
            if not page.readers:
                self._lender.give(page, self._lent)

    def copy_of(self, page: Page) -> Page:
        """A copy of a page that others read too, with one reader.

        Raises:
            OutOfMemory: the pool has no room for it.
        """
        copy = self.take()
        arrays.copy(page.array, copy.array)
        return copy


class Caches:
    """The pages of a model: of rows that grow, of rows that are kept, of states.

    Rows that grow have pages of their own for each number of rows that later ones read.

    Args:
        is_short: rows are kept in bfloat16, but for states, which are written over in each step.
    """

    def __init__(
        self, slots: Sequence[CacheSlot], dtype: DType, pool: Pool, is_short: bool = False
    ) -> None:
        of_kind = {kind: [slot for slot in slots if slot.kind is kind] for kind in SlotKind}
        self._lender = lender = Lender(pool, dtype)
        grown = of_kind[SlotKind.GROWN]
        self.grown = [
            Pages([slot for slot in grown if slot.reach == reach], ROWS, lender, reach, is_short)
            for reach in dict.fromkeys([slot.reach for slot in grown])
        ]
        self.kept = Pages(of_kind[SlotKind.KEPT], ROWS, lender, is_short=is_short)
        self.states = Pages(of_kind[SlotKind.STATE], 1, lender)

    @property
    def lent_bytes(self) -> int:
        return self._lender.lent_bytes

    @property
    def peak_bytes(self) -> int:
        return self._lender.peak_bytes

    def bytes_of(self, rows: int, step_rows: int) -> int:
        """The most bytes of a sentence with so many rows, which reads `step_rows` in a step."""
        total = self.states.page_bytes
        for pages in self.grown:
            most = pages.count(rows)
            if pages.reach < UNBOUNDED:
                most = min(most, pages.count(pages.reach + step_rows + TILE))
            total += most * pages.page_bytes
        return total
