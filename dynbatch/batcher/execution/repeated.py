"""`RepeatedRun`: a run that is done again and again, as it was planned once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.execution.run import Arenas, apply
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.steps.alias import AliasStep
from dynbatch.batcher.steps.places import packings, value_moves
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels import move
from dynbatch.kernels.c.runtime.tasks import run_each
from dynbatch.kernels.runtime import parallel
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged

Action = Callable[[], object]


class RepeatedRun:
    """The steps of a run without a loss, with all their arrays and tables of moves at hand.

    What its nodes read from outside of the graph may change from time to time, and sizes may not.
    While it rests, it holds no memory.

    Args:
        memory: the plan, of the only run of its graph.
        arenas: of the graph.
        statistics: count each run as if its nodes were new; none is recorded.
    """

    def __init__(self, memory: MemoryPlan, arenas: Arenas, statistics: GraphStatistics) -> None:
        self._memory = memory
        self._arenas = arenas
        self._statistics = statistics
        self._steps = memory.graph.new
        self._actions: list[Action] = []

    def run(self) -> None:
        """Run all steps.

        Raises:
            OutOfMemory: there is no room for the arenas.
        """
        if not self._actions:
            self._actions = self._placed()
        for step in self._steps:
            step.batch.launches = 0
        with parallel.one_blas_thread(), np.errstate(all="ignore"):
            for action in self._actions:
                action()
        self._statistics.count(self._steps, self._steps, anew=False, launches=True)
        self._statistics.launches += len(self._actions)

    def _placed(self) -> list[Action]:
        """What all steps do, with all blocks in their places in a new arena."""
        self.rest()
        memory = self._memory
        arena, scratch = self._arenas.take(memory.elements), None
        if memory.scratch.sizes:
            scratch = self._arenas.take(memory.scratch_elements)
        apply(memory, arena, scratch)
        steps = [step for stage in memory.stages for step in stage.steps]
        return [action for step in steps for action in _actions_of(step, arena)]

    def rest(self) -> None:
        """Give the memory back until it runs again; its values are gone."""
        self._actions = []
        for step in self._steps:
            step.batch.ports, step.batch.scratch = [], np.empty(0, step.batch.dtype)
            step.batch.saved.clear()
            for block in step.blocks:
                block.array = None
        self._arenas.give_after(0)


def _actions_of(step: StepRun, arena: Array) -> list[Action]:
    """What `StepRun.run_forward` does."""
    kind, batch = step.node_type, step.batch
    if isinstance(step, AliasStep):
        return []
    if step.is_structural:
        tables = value_moves(kind.rectangles(batch))  # type: ignore[attr-defined]
        return [partial(move.run, *table) for table in tables]
    actions: list[Action] = []
    xs: list[Ragged] = []
    for source in step.sources:
        if source.is_view:
            xs.append(source.view())
            continue
        assert source.packing is not None
        for array, moves in packings(source.nodes, source.size, source.packing):
            actions.append(partial(move.run, array, arena, moves))
        xs.append(source.packed(arena, source.packing))
    step.place_saved(arena)
    batch.ports = [port.values() for port in step.block.ports]
    kernel = partial(kind.forward_batch, batch, step.block.values(), *xs)
    actions.append((lambda: run_each(kernel())) if kind.writes_tasks else kernel)
    return actions
