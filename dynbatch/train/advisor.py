"""`Advisor`: tells once, in the course of a training, what would make its updates faster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dynbatch.graph import Graph
from dynbatch.reporting.advice import advice_text
from dynbatch.reporting.rules import total_seconds
from dynbatch.train.progress import tell

ASKED = 3
"""The last mini-batches, of which the fastest is asked: a busy machine slows some of them."""


class Advisor:
    """Prints advice on standard error.

    Args:
        updates: before it does; None for never.
    """

    def __init__(self, updates: int | None) -> None:
        self._left = updates
        self._graphs: deque[Graph] = deque(maxlen=ASKED)
        self._waits: deque[tuple[float, float]] = deque(maxlen=ASKED)

    def note(self, graph: Graph) -> None:
        """Keep a mini-batch's graph, which is closed, as long as it may be asked."""
        if self._left is not None:
            self._graphs.append(graph)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count the block's time as waiting for mini-batches."""
        begin = time.perf_counter()
        yield
        if self._left is not None:
            self._waits.append((begin, time.perf_counter()))

    def _reading_share(self) -> float:
        """The share of the last updates' time, from each one's waiting to the next one's, in which
        they waited."""
        waited = sum([end - begin for begin, end in self._waits])
        return waited / max(1e-9, time.perf_counter() - self._waits[0][0]) if self._waits else 0.0

    def updated(self) -> None:
        """Count an update, and print the advice if it is time."""
        if self._left is None:
            return
        self._left -= 1
        if self._left > 0:
            return
        fastest = min(self._graphs, key=_seconds_a_node)
        observed = fastest._observed()._replace(reading=self._reading_share())
        tell(advice_text(fastest._record(), observed))
        self._left = None
        self._graphs.clear()


def _seconds_a_node(graph: Graph) -> float:
    record = graph._record()
    return total_seconds(record) / max(1, record.statistics.nodes)
