"""`GraphSummary`: the doings of a thread's last graphs, for mistakes that only several show."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from dynbatch.compiler.traced import take_first_traced
from dynbatch.parameter import UNNAMED
from dynbatch.reporting.run_record import StepRecord

KEPT = 8
"""The last graphs of a thread that are remembered."""


class _LastGraphs(threading.local):
    """The last graphs of a thread that have ended, and how many have begun."""

    ended: tuple[GraphSummary, ...] = ()
    begun: int = 0


_of_thread = _LastGraphs()


@dataclass(eq=False, slots=True)
class GraphSummary:
    """A graph's doings, as rules that look at several graphs see it.

    Attributes:
        number:       of the thread's graphs, from 1.
        is_training:  backward has run.
        may_train:    it was made with grad=True.
        reads_parameters: at least one.
        sentences:    nodes of its largest batch: about as many as it has sentences.
        newest:       the largest uid of a parameter in it, or in a graph before; -1 for none.
        made:         names of parameters that are newer than any in the graphs before.
        has_others:   it reads older parameters.
        first_traced: cells and blocks that were traced in it for the first time.
        waited:       its loss was read from a GPU before another graph began.
    """

    number: int
    is_training: bool = False
    may_train: bool = False
    reads_parameters: bool = False
    sentences: int = 0
    newest: int = -1
    made: frozenset[str] = frozenset()
    has_others: bool = False
    first_traced: frozenset[str] = frozenset()
    waited: bool = False

    @property
    def is_latest(self) -> bool:
        return self.number == _of_thread.begun

    def note(
        self,
        before: Sequence[GraphSummary],
        rows: Sequence[StepRecord],
        is_training: bool,
        may_train: bool,
    ) -> None:
        """Note what the graph has done so far.

        Args:
            before: the graphs before it, the last at the end.
            rows:   its batches.
        """
        self.is_training, self.may_train = is_training, may_train
        self.sentences = max([row.nodes for row in rows], default=0)
        self.first_traced |= take_first_traced()
        known = before[-1].newest if before else -1
        self.newest = max([max(row.parameters) for row in rows if row.parameters], default=-1)
        self.reads_parameters = self.newest >= 0
        if self.newest > known:  # rarely: else nothing was made
            names = {uid: name for row in rows for uid, (name, _) in row.parameters.items()}
            made = {repr(name) for uid, name in names.items() if uid > known and name != UNNAMED}
            self.made = frozenset(made or {"a parameter without a name"})
            self.has_others = min(names) <= known
        self.newest = max(self.newest, known)


def begin() -> tuple[GraphSummary, tuple[GraphSummary, ...]]:
    """The summary of a graph that begins, and those of the thread's last graphs before it."""
    _of_thread.begun += 1
    return GraphSummary(_of_thread.begun), _of_thread.ended


def end(summary: GraphSummary) -> None:
    """Let the thread's later graphs know of one that has ended."""
    _of_thread.ended = (*_of_thread.ended, summary)[1 - KEPT :]


def forget() -> None:
    """Forget this thread's graphs, as if the process began."""
    _of_thread.ended = ()
    take_first_traced()
