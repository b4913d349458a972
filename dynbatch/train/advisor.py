"""`Advisor`: tells once, in the course of a training, what would make its updates faster."""

from __future__ import annotations

import sys
from collections import deque

from tqdm import tqdm

from dynbatch.graph import Graph
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

    def note(self, graph: Graph) -> None:
        """Keep a mini-batch's graph, which is closed, as long as it may be asked."""
        if self._left is not None:
            self._graphs.append(graph)

    def updated(self) -> None:
        """Count an update, and print the advice if it is time."""
        if self._left is None:
            return
        self._left -= 1
        if self._left > 0:
            return
        fastest = min(self._graphs, key=_seconds_a_node)
        with tqdm.external_write_mode(sys.stderr):
            tell(fastest.advice())
        self._left = None
        self._graphs.clear()


def _seconds_a_node(graph: Graph) -> float:
    record = graph._record()
    return total_seconds(record) / max(1, record.statistics.nodes)
