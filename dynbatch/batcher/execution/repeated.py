"""`RepeatedRun`: a run without a loss that is done again and again, as it was planned once."""

from __future__ import annotations

import numpy as np

from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.execution.run import Arenas, apply
from dynbatch.batcher.execution.stage_runner import StageRunner
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.kernels.runtime import parallel
from dynbatch.parameter import Array


class RepeatedRun:
    """The steps of a run, with the plan of their memory.

    What its nodes read from outside of the graph may change from time to time, and sizes may not.
    While it rests, it holds no memory.

    Args:
        memory: the plan, of the only run of its graph.
        stages: run the steps.
        arenas: of the graph.
        statistics: count what runs; no node is recorded.
    """

    def __init__(
        self, memory: MemoryPlan, stages: StageRunner, arenas: Arenas, statistics: GraphStatistics
    ) -> None:
        self._memory = memory
        self._stages = stages
        self._arenas = arenas
        self._statistics = statistics
        self._arena: Array | None = None

    def run(self) -> None:
        """Run all steps.

        Raises:
            OutOfMemory: there is no room for the arenas.
        """
        if self._arena is None:
            self._arena = self._placed()
        steps = self._memory.graph.new
        for step in steps:
            step.spans.clear()
            step.batch.memo.clear()
            step.batch.launches = 0
        with parallel.one_blas_thread(), np.errstate(all="ignore"):
            for stage in self._memory.stages:
                self._stages.run(stage, self._arena)
        self._statistics.batches += len(steps)
        self._statistics.launches += sum([step.batch.launches for step in steps])

    def _placed(self) -> Array:
        """The arena, with all blocks in their places there."""
        self.rest()
        memory = self._memory
        arena, scratch = self._arenas.take(memory.elements), None
        if memory.scratch.sizes:
            scratch = self._arenas.take(memory.scratch_elements)
        apply(memory, arena, scratch)
        return arena

    def rest(self) -> None:
        """Give the memory back until it runs again; its values are gone."""
        self._arena = None
        for step in self._memory.graph.new:
            for block in step.blocks:
                block.array = None
        self._arenas.give_after(0)
