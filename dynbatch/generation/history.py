"""`History`: what a sentence has left for its rows to come, in pages that others may share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dynbatch.generation.pages import TILE, CacheMemory, Caches, Page, Pages
from dynbatch.kernels import arrays
from dynbatch.kernels.attention.mask import UNBOUNDED

NOWHERE = 1 << 60
"""Behind every row."""


class GrownPages:
    """The pages of one kind in which a sentence's rows grow.

    Row j behind those that were dropped is row j of the pages, and from row `split` on row j + gap:
    what sentences share may end within a page, and each goes on in a page of its own.

    Attributes:
        held:      the pages in order.
        addresses: of the pages, and room for more; int64.
        dropped:   rows of pages that were given back, because no later row reads them.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.held: list[Page] = []
        self.addresses = np.zeros(8, np.int64)
        self.dropped, self.split, self.gap = 0, NOWHERE, 0

    def fork(self) -> GrownPages:
        other = GrownPages(self._pages)
        other.held, other.addresses = self._pages.shared(self.held), self.addresses.copy()
        other.dropped, other.split, other.gap = self.dropped, self.split, self.gap
        return other

    def _next(self, length: int) -> tuple[bool, int | None]:
        """Whether row `length` begins a page behind a gap, and which page it needs a copy of."""
        number, row = divmod(length - self.dropped + self.gap, self._pages.rows)
        if not row or number >= len(self.held) or self.held[number].readers == 1:
            return False, None
        may_split = self.split == NOWHERE and self._pages.reach == UNBOUNDED
        return may_split, None if may_split else number

    def bytes_for(self, length: int, rows: int) -> int:
        splits, copied = self._next(length)
        gap = -length % self._pages.rows if splits else self.gap
        count = self._pages.count(length + rows - self.dropped + gap) - len(self.held)
        return (max(0, count) + (copied is not None)) * self._pages.page_bytes if rows else 0

    def reserve(self, length: int, rows: int) -> None:
        """Have room for `rows` rows behind `length`, that no other sentence reads."""
        splits, copied = self._next(length)
        if splits:
            self.split, self.gap = length, -length % self._pages.rows
        if copied is not None:
            before = self.held[copied]
            self._put(copied, self._pages.copy_of(before))
            self._pages.leave([before])
        while len(self.held) < self._pages.count(length + rows - self.dropped + self.gap):
            self._put(len(self.held), self._pages.take())

    def _put(self, number: int, page: Page) -> None:
        if number == self.addresses.size:
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)])
        self.held[number : number + 1] = [page]
        self.addresses[number] = page.address

    def drop(self, length: int) -> None:
        """Give back the pages that no row from `length` on reads, a tile of keys at a time."""
        unread = length - self._pages.reach - self.dropped
        if unread >= TILE:
            rows = unread // TILE * TILE
            count = rows // self._pages.rows
            gone, self.held = self.held[:count], self.held[count:]
            self.addresses = np.concatenate([self.addresses[count:], np.zeros(count, np.int64)])
            self.dropped += rows
            self._pages.leave(gone)

    def spans(self, length: int) -> Iterator[tuple[Page, int, int]]:
        """The pages, and between which of its rows each has some that are read again."""
        low = max(0, length - self._pages.reach - self.dropped)
        high = length - self.dropped
        for number, page in enumerate(self.held):
            start = number * self._pages.rows
            if start >= self.split:
                start -= self.gap
            end = min(start + self._pages.rows, high, self.split if start < self.split else high)
            if max(start, low) < end:
                yield page, max(start, low) - start, end - start

    def close(self) -> None:
        held, self.held = self.held, []
        self._pages.leave(held)
        self.dropped, self.split, self.gap = 0, NOWHERE, 0


class History:
    """The data that a sentence keeps for later rows.

    Attributes:
        caches:      where its pages come from.
        length:      rows so far.
        grown:       its pages for each of `Caches.grown`.
        kept, state: its other pages.
        kept_rows:   rows of each slot in those that are kept.
    """

    def __init__(self, caches: Caches) -> None:
        self.caches = caches
        self.grown = [GrownPages(pages) for pages in caches.grown]
        self.kept: list[Page] = []
        self.kept_rows = [0] * len(caches.kept.slots)
        self.state: Page | None = None
        self.length = 0

    def bytes_for(self, rows: int) -> int:
        states = self.caches.states
        is_ready = not states.slots or (self.state is not None and self.state.readers == 1)
        needed = 0 if is_ready else states.page_bytes
        return needed + sum([grown.bytes_for(self.length, rows) for grown in self.grown])

    def reserve(self, rows: int) -> None:
        """Have room for so many more rows, and a state, that no other sentence reads.

        Raises:
            OutOfMemory: the pool has none; what was taken is kept until `close`.
        """
        if rows:
            for grown in self.grown:
                grown.reserve(self.length, rows)
        states = self.caches.states
        if states.slots:
            if self.state is None:
                self.state = states.take()
                arrays.fill(self.state.array, 0)
            elif self.state.readers > 1:
                before = self.state
                self.state = states.copy_of(before)
                states.leave([before])

    def advance(self, rows: int) -> None:
        """Count rows that were written; pages that no later row reads go back."""
        self.length += rows
        for grown in self.grown:
            grown.drop(self.length)

    def begin(self, kept_rows: Sequence[int]) -> None:
        """Have pages for what a sentence is given: rows of each slot that is kept; and a state.

        Raises:
            OutOfMemory: the pool has no room; what was taken is kept until `close`.
        """
        self.reserve(0)
        kept = self.caches.kept
        self.kept_rows = list(kept_rows)
        while len(self.kept) < kept.count(max(kept_rows, default=0)):
            self.kept.append(kept.take())

    def fork(self) -> History:
        """A sentence that began alike; it shares all pages."""
        other = History(self.caches)
        other.length, other.kept_rows = self.length, self.kept_rows
        other.grown = [grown.fork() for grown in self.grown]
        other.kept = self.caches.kept.shared(self.kept)
        if self.state is not None:
            (other.state,) = self.caches.states.shared([self.state])
        return other

    def close(self) -> None:
        """Give all pages back; it is empty then."""
        for grown in self.grown:
            grown.close()
        kept, self.kept, state, self.state = self.kept, [], self.state, None
        self.caches.kept.leave(kept)
        if state is not None:
            self.caches.states.leave([state])
        self.length = 0

    def spans(self) -> Iterator[tuple[Pages, Page, int, int]]:
        """The pages, and between which of its rows each has some that are read again."""
        for pages, grown in zip(self.caches.grown, self.grown, strict=True):
            for page, low, high in grown.spans(self.length):
                yield pages, page, low, high
        kept = self.caches.kept
        most = max(self.kept_rows, default=0)
        for start, page in zip(range(0, most, kept.rows), self.kept, strict=True):
            yield kept, page, 0, min(kept.rows, most - start)
        if self.state is not None:
            yield self.caches.states, self.state, 0, 1


def memory_of(caches: Caches, histories: Iterable[History]) -> CacheMemory:
    """Bytes of what these sentences keep, who are all that there are."""
    spans: dict[Page, tuple[int, int, int]] = {}
    for history in histories:
        for pages, page, low, high in history.spans():
            _, first, last = spans.get(page, (0, low, high))
            spans[page] = pages.row_bytes, min(low, first), max(high, last)
    live = sum([size * (high - low) for size, low, high in spans.values()])
    return CacheMemory(live, caches.lent_bytes, caches.peak_bytes)
