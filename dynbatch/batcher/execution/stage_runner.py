"""`StageRunner`: starts the kernels of a stage, on threads or on a GPU, by `StepActions`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from dynbatch.backend import Array, Device
from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.planning.stages import Stage
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import StepGradients, commit
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.stream import run_joined, stream_of
from dynbatch.kernels.runtime.tasks import do

WORTH_A_THREAD = 50_000
"""Below this many elements a thread costs more than it saves (measured: hand-over ~30 µs)."""


class StepActions:
    """The actions of an executor on batch steps.

    Args:
        device:     where they run.
        statistics: count what `flush` starts.
    """

    def __init__(self, device: Device, statistics: GraphStatistics) -> None:
        self.device = device
        self.statistics = statistics
        self._room: Array | None = None  # of products, until all that is queued has started

    def begin(self) -> None:
        """Begin a run; parameters may have changed since the last one."""

    def forward(self, step: StepRun, arena: Array) -> None:
        do(step.forward(arena))

    def backward(self, step: StepRun, arena: Array) -> None:
        do(step.backward(arena))

    def add_gradients(self, step: StepRun, arena: Array) -> None:
        """Add the gradients that a step's backward left in scratch to those of its inputs."""
        step.add_gradients(arena)

    def rounded(self, step: StepRun) -> None:
        """Take note that a step's values have been rounded to bfloat16."""

    def clear(self, block: Block) -> None:
        arrays.fill(block.gradients().values, 0)

    def commit(self, gradients: Sequence[StepGradients]) -> None:
        """Add the gradients that steps left for parameters to their `grad`."""
        if any([step.dense for step in gradients]):
            stream_of(self.device).settle()
        room = commit(gradients, self._room)
        self._room = room if self.device.is_cuda else None

    def flush(self) -> None:
        """Start queued work for the GPU, if there is one."""
        if not self.device.is_cuda:
            return
        begin = time.perf_counter()
        waiting, statistics = stream_of(self.device), self.statistics
        before = waiting.counts()
        waiting.flush()
        self._room = None
        started = waiting.counts() - before + waiting.early
        waiting.early.clear()
        statistics.launches += started["launches"]
        statistics.uploads += started["uploads"]
        statistics.host_seconds += time.perf_counter() - begin

    def start(self) -> list[str]:
        """Start queued work for the GPU; return the names of its kernels."""
        names = stream_of(self.device).waiting()
        self.flush()
        return names

    def close(self) -> None:
        """Forget the graph's steps after its last run."""


class StageRunner:
    """Runs the steps of a stage, side by side where they are large enough.

    Args:
        device:       where.
        actions:      what runs the steps.
        side_by_side: whether steps of a stage may run at the same time.
    """

    def __init__(self, device: Device, actions: StepActions, side_by_side: bool) -> None:
        self._device = device
        self._actions = actions
        self._side_by_side = side_by_side

    def run(self, stage: Stage, arena: Array) -> None:
        """Run forward or backward of the steps, after clearing the gradients that they add to."""
        actions, is_backward = self._actions, stage.is_backward
        # The stream of the thread which runs.
        queue = stream_of(self._device) if self._device.is_cuda else None
        for block in stage.cleared:
            if queue is not None:
                queue.label = f"the gradient of {block.nodes[0].label()}"
            actions.clear(block)
        act = actions.backward if is_backward else actions.forward
        steps = [step for step in stage.steps if not (is_backward and step.is_structural)]
        for step in self._left(steps, is_backward, arena) if len(steps) > 1 else steps:
            if queue is None:
                act(step, arena)
                continue
            queue.label = step.label
            with queue.hook(step.node_type.names_kernels):
                act(step, arena)
        for step in stage.steps:
            if is_backward or step.fused:
                if queue is not None:
                    queue.label = step.label
                actions.add_gradients(step, arena)

    def _left(self, steps: Sequence[StepRun], is_backward: bool, arena: Array) -> Sequence[StepRun]:
        """Run steps side by side where they may and it pays; return those that are left."""
        if self._device.is_cuda:
            large = [step for step in steps if step.node_type.names_kernels]
            may = len(large) == len(steps)
        else:
            large = [step for step in steps if step.work >= WORTH_A_THREAD]
            may = len(large) > 1
        if not (may and self._side_by_side):
            return steps
        chosen = frozenset(large)
        small = [step for step in steps if step not in chosen]
        if self._device.is_cuda or all([step.node_type.writes_tasks for step in large]):
            runs = [step.backward if is_backward else step.forward for step in large]
            pairs = zip(large, runs, strict=True)
            run_joined(self._device, [(step.label, partial(run, arena)) for step, run in pairs])
            return small
        act = self._actions.backward if is_backward else self._actions.forward
        return [*side_by_side(large, lambda step: act(step, arena)), *small]


def side_by_side(steps: Sequence[StepRun], act: Callable[[StepRun], None]) -> Sequence[StepRun]:
    """Run steps on a thread each, as long as all threads have one, the largest first.

    Returns:
        the steps that are left: of each, all threads can share the kernels.
    """
    order, threads = sorted(steps, key=lambda step: -step.work), parallel.available()
    count = len(order) if len(order) <= threads else len(order) - len(order) % threads
    parallel.run([partial(act, step) for step in order[:count]])
    return order[count:]
