"""`StageRunner`: starts the kernels of a stage, on threads or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from dynbatch.backend import Device
from dynbatch.batcher.execution.observer import StepActions
from dynbatch.batcher.planning.stages import Stage
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.runtime import parallel
from dynbatch.parameter import Array

WORTH_A_THREAD = 50_000
"""Below this many elements a thread costs more than it saves (measured: hand-over ~30 µs)."""

Task = Callable[[], None]


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
        actions = self._actions
        launches = queue() if self._device.is_cuda else None  # that of the thread which runs
        for block in stage.cleared:
            self._clear(block, launches)
        if stage.is_backward:
            steps: Sequence[StepRun] = [s for s in stage.steps if not s.is_structural]
            tasks = [partial(actions.backward, step, arena) for step in steps]
        else:
            steps = stage.steps
            tasks = [partial(actions.forward, step, arena) for step in steps]
        if launches is None:
            self._on_threads(steps, tasks)
        else:
            self._on_device(launches, steps, tasks)
        for step in stage.steps:
            if stage.is_backward or step.fused:
                if launches is not None:
                    launches.label = _label(step)
                actions.add_gradients(step, arena)

    def _clear(self, block: Block, launches: Queue | None) -> None:
        if launches is not None:
            launches.label = f"the gradient of {block.nodes[0].label()}"
        self._actions.clear(block)

    def _on_threads(self, steps: Sequence[StepRun], tasks: Sequence[Task]) -> None:
        heavy = [step.work >= WORTH_A_THREAD for step in steps] if len(steps) > 1 else []
        if self._side_by_side and sum(heavy) > 1:
            parallel.run([task for task, is_heavy in zip(tasks, heavy, strict=True) if is_heavy])
            tasks = [task for task, is_heavy in zip(tasks, heavy, strict=True) if not is_heavy]
        for task in tasks:
            task()

    def _on_device(self, launches: Queue, steps: Sequence[StepRun], tasks: Sequence[Task]) -> None:
        tasks = [partial(_launch, launches, *pair) for pair in zip(steps, tasks, strict=True)]
        is_free = self._side_by_side and all([step.node_type.names_kernels for step in steps])
        if len(tasks) > 1 and is_free:
            launches.side_by_side(tasks)
        else:
            for task in tasks:
                task()


def _launch(launches: Queue, step: StepRun, task: Task) -> None:
    launches.label = _label(step)
    with nullcontext() if step.node_type.names_kernels else launches.at_once():
        task()


def _label(step: StepRun) -> str:
    """Have errors of the device name this step from now on."""
    return f"{step.nodes[0].label()}, in a batch of {len(step.nodes)}"
