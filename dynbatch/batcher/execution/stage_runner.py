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
from dynbatch.kernels.runtime.stream import Stream, run_joined, stream_of
from dynbatch.kernels.runtime.tasks import do

WORTH_A_THREAD = 50_000
"""Below this many elements a thread costs more than it saves (measured: hand-over ~30 µs)."""

Task = Callable[[], None]


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
        launches = stream_of(self._device) if self._device.is_cuda else None
        for block in stage.cleared:
            self._clear(block, launches)
        if is_backward:
            steps: Sequence[StepRun] = [s for s in stage.steps if not s.is_structural]
            tasks = [partial(actions.backward, step, arena) for step in steps]
        else:
            steps = stage.steps
            tasks = [partial(actions.forward, step, arena) for step in steps]
        if launches is None:
            self._on_threads(steps, tasks, is_backward, arena)
        else:
            self._on_device(launches, steps, tasks, is_backward, arena)
        for step in stage.steps:
            if is_backward or step.fused:
                if launches is not None:
                    launches.label = step.label
                actions.add_gradients(step, arena)

    def _clear(self, block: Block, launches: Stream | None) -> None:
        if launches is not None:
            launches.label = f"the gradient of {block.nodes[0].label()}"
        self._actions.clear(block)

    def _on_threads(
        self, steps: Sequence[StepRun], tasks: Sequence[Task], is_backward: bool, arena: Array
    ) -> None:
        heavy = [step.work >= WORTH_A_THREAD for step in steps] if len(steps) > 1 else []
        if self._side_by_side and sum(heavy) > 1:
            large = [step for step, is_heavy in zip(steps, heavy, strict=True) if is_heavy]
            if all([step.node_type.writes_tasks for step in large]):
                run_joined(self._device, _kernels(large, is_backward, arena))
                left: Sequence[Task] = ()
            else:
                left = side_by_side(
                    large, [task for task, is_heavy in zip(tasks, heavy, strict=True) if is_heavy]
                )
            small = [task for task, is_heavy in zip(tasks, heavy, strict=True) if not is_heavy]
            tasks = [*left, *small]
        for task in tasks:
            task()

    def _on_device(
        self, launches: Stream, steps: Sequence[StepRun], tasks: Sequence[Task], is_backward: bool,
        arena: Array,
    ) -> None:  # fmt: skip
        is_free = self._side_by_side and all([step.node_type.names_kernels for step in steps])
        if len(tasks) > 1 and is_free:
            run_joined(self._device, _kernels(steps, is_backward, arena))
        else:
            for step, task in zip(steps, tasks, strict=True):
                _launch(launches, step, task)


def _kernels(
    steps: Sequence[StepRun], is_backward: bool, arena: Array
) -> list[tuple[str, Callable[[], object]]]:
    """Forward or backward of each step, which writes down what it can, and the step's label."""
    runs = [step.backward if is_backward else step.forward for step in steps]
    return [(step.label, partial(run, arena)) for step, run in zip(steps, runs, strict=True)]


def side_by_side(steps: Sequence[StepRun], tasks: Sequence[Task]) -> Sequence[Task]:
    """Run the tasks of steps on a thread each, as long as all threads have one, the largest first.

    Returns:
        the tasks that are left: of each, all threads can share the kernels.
    """
    threads, count = parallel.available(), len(tasks)
    if count > threads:
        count -= count % threads
    order = sorted(range(len(tasks)), key=lambda k: -steps[k].work)
    parallel.run([tasks[k] for k in order[:count]])
    return [tasks[k] for k in order[count:]]


def _launch(launches: Stream, step: StepRun, task: Task) -> None:
    launches.label = step.label
    with launches.hook(step.node_type.names_kernels):
        task()
