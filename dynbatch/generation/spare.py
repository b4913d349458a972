"""`SpareSentences`: what fills a step on a GPU up to a number of sentences that is planned for."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.generation.history import History
from dynbatch.generation.pages import ROWS, Caches


class SpareSentences:
    """Sentences without a request, whose one row a step computes in vain.

    A step that is replayed as a CUDA graph is planned and captured for as many sentences as a power
    of two, so that prompts end and join without a new plan. On a GPU rows cost next to nothing
    beside the weights that a step reads. What spare sentences write lies in pages of their own, a
    row of `ROWS` in each, and is written over in the next step; their logits are dropped.

    Args:
        caches: their own.
    """

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._histories: list[History] = []

    def take(self, count: int) -> Sequence[History]:
        """Spare sentences, as many as asked for, with room for a row each.

        Raises:
            OutOfMemory: the pool has no room for their pages.
        """
        while len(self._histories) < count:
            self._add(len(self._histories))
        return self._histories[:count]

    def _add(self, number: int) -> None:
        row = number % ROWS
        history = self._histories[number - row].fork() if row else History(self._caches)
        self._histories.append(history)
        try:
            history.reserve(int(not row))  # the others have a row of the first one's page
        except BaseException:
            self._histories.pop().close()
            raise
        for grown in history.grown:
            grown.split, grown.gap = 0, row

    def close(self) -> None:
        while self._histories:
            self._histories.pop().close()
