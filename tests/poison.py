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
from dynbatch.kernels import arrays
from dynbatch.memory import Interval


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, every element of an arena is NaN before its interval begins and after it ends."""
    allocate, run_stage = Executor._allocate, Executor._run_stage
    plans = {}

    def allocate_poisoned(self, plan):
        arena, memory = allocate(self, plan), plan.memory
        assert_disjoint(memory.intervals)
        arrays.fill(arena, np.nan)
        plans[id(arena)] = memory
        return arena

    def run_stage_and_poison(self, stage, arena):
        seconds = run_stage(self, stage, arena)
        memory = plans[id(arena)]
        (time,) = [t for t, other in enumerate(memory.stages) if other is stage]
        for interval in memory.intervals:
            if interval.last == time:
                arrays.fill(arena[interval.offset : interval.offset + interval.size], np.nan)
        if stage is memory.stages[-1]:
            del plans[id(arena)]  # so that this tool keeps no node alive
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
