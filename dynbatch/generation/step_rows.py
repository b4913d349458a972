"""`StepRows`: where the sentences of one step keep their rows, as arrays for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.scan.resumed import ScanPast
from dynbatch.generation.history import GrownPages, History
from dynbatch.generation.pages import Caches, Page, Pages
from dynbatch.generation.resumed import CacheSlot
from dynbatch.kernels.attention.addresses import PagedRows, PageTable, write_rows


class StepRows:
    """The kept data of some sentences, for a step that reads new rows of each.

    Args:
        histories: of the sentences, with room for the new rows.
        new:       (N,) how many.

    Attributes:
        before:      (N,) rows of each so far.
        memory_rows: the most rows that all of them keep of one slot.
    """

    def __init__(self, caches: Caches, histories: Sequence[History], new: Array) -> None:
        self._caches = caches
        self._new = new
        self._nothing = np.zeros_like(new)
        self._histories = histories
        self.before = np.array([history.length for history in histories], np.int64)
        self._kept_rows = np.array([history.kept_rows for history in histories], np.int64)
        self.memory_rows = int(self._kept_rows.sum(axis=0).max(initial=0))

    def pasts(self, room: int) -> dict[int, object]:
        """The kept data of each operator, by number.

        Args:
            room: for rows of a scan's memory.
        """
        caches, past_of = self._caches, dict[int, object]()
        for kind, grown in enumerate(caches.grown):
            table = self._grown(grown, [history.grown[kind] for history in self._histories])
            for number, slot in enumerate(grown.slots):
                past_of[slot.operator] = _rows(grown, number, table)
        memories: dict[int, PagedRows] = {}
        pages = [history.kept for history in self._histories]
        for number, slot in enumerate(caches.kept.slots):
            table = _table(caches.kept, pages, self._kept_rows[:, number], self._nothing)
            memories[slot.operator] = _rows(caches.kept, number, table)
        if caches.states.slots:
            states = [[history.state] for history in self._histories if history.state is not None]
            table = _table(caches.states, states, np.ones_like(self._new), self._nothing)
            for number, slot in enumerate(caches.states.slots):
                memory = memories.pop(slot.operator, None)
                rows = _rows(caches.states, number, table)
                past_of[slot.operator] = ScanPast(rows, memory, room)
        return past_of | memories

    def _grown(self, pages: Pages, of_sentences: Sequence[GrownPages]) -> PageTable:
        bases = np.concatenate([each.addresses[: len(each.held)] for each in of_sentences])
        lengths = self.before - np.array([each.dropped for each in of_sentences], np.int64)
        gaps = np.array([(each.split, each.gap) for each in of_sentences], np.int64)
        counts = [len(each.held) for each in of_sentences]
        return PageTable(bases, counts, lengths, self._new, pages.rows, gaps)


def keep_given(
    caches: Caches, histories: Sequence[History], given: Mapping[CacheSlot, Sequence[Array | None]]
) -> None:
    """Write what sentences are given into the pages that they have for it.

    Args:
        given: what the sources of each slot have made, the rows of all sentences one after the
               other; None for zeros, which a state has at first.
    """
    kept, states = caches.kept, caches.states
    kept_rows = np.array([history.kept_rows for history in histories], np.int64)
    none, one = [np.full(len(histories), count) for count in (0, 1)]
    pages = [history.kept for history in histories]
    for number, slot in enumerate(kept.slots):
        table = _table(kept, pages, none, kept_rows[:, number])
        _rows(kept, number, table).append(*[rows for rows in given[slot] if rows is not None])
    of_states = [[history.state] for history in histories if history.state is not None]
    for number, slot in enumerate(states.slots):
        places = _rows(states, number, _table(states, of_states, none, one)).addresses
        for k, rows in enumerate(given[slot]):
            if rows is not None:
                write_rows(rows, places[:, k].copy(), states.is_short)


def _table(
    pages: Pages, of_sentences: Sequence[Sequence[Page]], lengths: Array, new: Array
) -> PageTable:
    bases = np.array([page.address for each in of_sentences for page in each], np.int64)
    return PageTable(bases, [len(each) for each in of_sentences], lengths, new, pages.rows)


def _rows(pages: Pages, number: int, table: PageTable) -> PagedRows:
    return PagedRows(table, pages.offsets[number], pages.slots[number].widths, pages.is_short)
