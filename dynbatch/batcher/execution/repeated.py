"""`RepeatedRun`: a run that is done again and again, as it was planned once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import is_

import numpy as np

from dynbatch.backend import Array, Device
from dynbatch.batcher.execution.forms import round_step
from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.execution.recorded_stages import surroundings
from dynbatch.batcher.execution.run import Arenas, apply
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.planning.narrowing import Ranges
from dynbatch.batcher.steps.alias import AliasStep
from dynbatch.batcher.steps.places import packings, value_moves
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels import move
from dynbatch.kernels.packed import packed_weights
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import multiplying
from dynbatch.kernels.runtime.stream import Action, kept, stream_of
from dynbatch.kernels.runtime.tasks import do
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class RepeatedRun:
    """The steps of a run without a loss, with all their arrays and tables of moves at hand.

    What its nodes read from outside of the graph may change from time to time, and sizes may not.
    While it rests, it holds no memory. When it runs for the second time in its arena, the calls of
    kernels in C are written down, for the parameters' arrays and the settings of that time: those
    that follow one another become one call. On a GPU their launches are kept, from the first time
    on, and a run is a step that comes again, which `repeating` may start as one CUDA graph.

    Args:
        memory: the plan, of the only run of its graph.
        arenas: of the graph.
        statistics: count each run as if its nodes were new; none is recorded.
        matmul: the precision of products with weights.
        device: of the graph.
    """

    def __init__(
        self, memory: MemoryPlan, arenas: Arenas, statistics: GraphStatistics, matmul: str,
        device: Device,
    ) -> None:  # fmt: skip
        self._memory = memory
        self._arenas = arenas
        self._statistics = statistics
        self._matmul = matmul
        self._device = device
        self._steps = memory.graph.new
        self._actions: list[Action] = []
        self._each: list[tuple[Action, bool]] = []
        self._launches = 0
        self._parameters: list[Parameter] = []
        self._known: list[object] = []

    def run(self) -> None:
        """Run all steps.

        Raises:
            OutOfMemory: there is no room for the arenas.
        """
        with multiplying(self._matmul):
            self._run()

    def _run(self) -> None:
        if not self._each:
            self._place()
        elif not (self._known and all(map(is_, self._known, self._surroundings()))):
            self._write()
        for step in self._steps:
            step.batch.begin(0)
        stream = stream_of(self._device)
        with stream.repeating(), parallel.one_blas_thread(), np.errstate(all="ignore"):
            for action in self._actions:
                action()
        self._statistics.count(self._steps, self._steps, anew=False, launches=True)
        self._statistics.launches += self._launches
        stream.early.clear()  # which are among these

    def _surroundings(self) -> list[object]:
        return surroundings(self._device, self._parameters)

    def _place(self) -> None:
        """Find out what all steps do, with all blocks in their places in a new arena."""
        self.rest()
        memory = self._memory
        arena, _ = apply(memory, self._arenas)
        steps = [step for stage in memory.stages for step in stage.steps]
        kernels = [step.batch.first for step in steps if step.node_type.is_one_kernel]
        read = [parameter for node in kernels for parameter in node.all_parameters()]
        self._parameters = list(dict.fromkeys(read))
        rounded = memory.graph.rounded
        each = [pair for step in steps for pair in _actions_of(step, arena, rounded.get(step, ()))]
        self._actions = [action for action, _ in each]
        # On the CPU a rounding is no launch, here as in a run that is not repeated.
        uncounted = [] if self._device.is_cuda else [x for x in steps if rounded.get(x)]
        self._launches = len(each) - len(uncounted)
        self._each = each  # last: after an interrupt before it the next run begins here again
        if not isinstance(arena, np.ndarray):
            self._write()

    def _write(self) -> None:
        """Write down what C does, as it would now, or what a GPU is given to do."""
        addresses = self._surroundings()
        if (packed := packed_weights()) is not None:
            packed.renew()
        self._actions = kept(self._device, self._each)
        self._known = addresses

    def rest(self) -> None:
        """Give the memory back until it runs again; its values are gone."""
        self._actions, self._each, self._parameters, self._known = [], [], [], []
        for step in self._steps:
            step.batch.ports, step.batch.scratch = [], np.empty(0, step.batch.dtype)
            step.batch.saved.clear()
            for block in step.blocks:
                block.array = None
        self._arenas.give_after(0)


def _actions_of(
    step: StepRun, arena: Array, rounded: Sequence[Ranges]
) -> list[tuple[Action, bool]]:
    """The work of `StepRun.forward`, for `kept`; its arrays stay at their addresses.

    Args:
        rounded: the elements of each block that are rounded after it.
    """
    actions = _forward_actions(step, arena)
    if rounded:
        actions.append((partial(round_step, step, rounded), True))
    return actions


def _forward_actions(step: StepRun, arena: Array) -> list[tuple[Action, bool]]:
    kind, batch = step.node_type, step.batch
    if isinstance(step, AliasStep):
        return []
    if step.is_structural:
        tables = value_moves(kind.rectangles(batch))  # type: ignore[attr-defined]
        return [(partial(move.run, *table), True) for table in tables]
    actions: list[tuple[Action, bool]] = []
    xs: list[Ragged] = []
    for source, packing in zip(step.sources, step.placement.packings, strict=True):
        if source.is_view:
            xs.append(source.view())
            continue
        assert packing is not None
        for array, moves in packings(source.nodes, source.size, packing.offset):
            actions.append((partial(move.run, array, arena, moves), True))
        xs.append(source.packed(arena, packing.offset))
    step.place_saved(arena)
    batch.ports = [port.values() for port in step.block.ports]
    kernel = partial(kind.forward_batch, batch, step.block.values(), *xs)
    if not (kind.names_kernels or isinstance(arena, np.ndarray)):
        return [*actions, (partial(_at_once, kernel, batch.device), False)]
    if kind.writes_tasks:
        return [*actions, (lambda: do(kernel()), False)]
    return [*actions, (kernel, kind.is_one_kernel and not batch.keeps)]


def _at_once(kernel: Action, device: Device) -> None:
    """Run a hook of a user's type, on a GPU after all that has been queued."""
    with stream_of(device).at_once():
        kernel()
