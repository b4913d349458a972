"""Memory that turns to NaN the moment it is planned to be dead, for tests of lifetimes.

Memory is reused only sometimes, so a block that is read after its last planned use is right most of
the time. Under `poisoned_memory` it is never right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from unittest.mock import patch

import numpy as np

from dynbatch.batcher.execution.executor import Executor
from dynbatch.memory import Interval


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, every element of an arena is NaN before its interval begins and after it ends."""
    allocate, run_stage = Executor._allocate, Executor._run_stage
    layouts = {}

    def allocate_poisoned(self, plan):
        arena, layout = allocate(self, plan), plan.layout
        assert_disjoint(layout.intervals)
        arena.fill(np.nan)
        layouts[id(arena)] = layout
        return arena

    def run_stage_and_poison(self, stage, arena):
        seconds = run_stage(self, stage, arena)
        layout = layouts[id(arena)]
        (time,) = [t for t, other in enumerate(layout.sequence) if other is stage]
        for interval in layout.intervals:
            if interval.last == time:
                arena[interval.offset : interval.offset + interval.size] = np.nan
        if stage is layout.sequence[-1]:
            del layouts[id(arena)]  # so that this tool keeps no node alive
        return seconds

    with (
        patch.object(Executor, "_allocate", allocate_poisoned),
        patch.object(Executor, "_run_stage", run_stage_and_poison),
    ):
        yield


def assert_disjoint(intervals: list[Interval]) -> None:
    """No two intervals that are alive at once share an element."""
    occupied = [i for i in intervals if i.size]
    for a, b in combinations(occupied, 2):
        alive_together = a.first <= b.last and b.first <= a.last
        share = a.offset < b.offset + b.size and b.offset < a.offset + a.size
        assert not (alive_together and share), (a, b)
