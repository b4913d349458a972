"""`Observer`: base of wrappers that watch an executor's actions on batch steps.

Observers wrap each other, as rmm's adaptors wrap memory resources: each does what lies beneath it
and adds one thing. At the bottom `StepActions` runs the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dynbatch.backend import Device
from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import StepGradients, commit
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.parameter import Array


class StepActions:
    """The actions of an executor on batch steps.

    Args:
        device:     where they run.
        statistics: count what `flush` starts.
    """

    def __init__(self, device: Device, statistics: GraphStatistics) -> None:
        self.device = device
        self.statistics = statistics

    def begin(self) -> None:
        """Begin a run; parameters may have changed since the last one."""

    def forward(self, step: StepRun, arena: Array) -> None:
        """Pack the inputs of a step and run its batched forward."""
        step.run_forward(arena)

    def backward(self, step: StepRun, arena: Array) -> None:
        """Run the batched backward of a step."""
        step.run_backward(arena)

    def add_gradients(self, step: StepRun, arena: Array) -> None:
        """Add the gradients that a step's backward left in scratch to those of its inputs."""
        step.add_gradients(arena)

    def clear(self, block: Block) -> None:
        """Set a block's gradient to 0."""
        arrays.fill(block.gradients().values, 0)

    def commit(self, gradients: Sequence[StepGradients]) -> None:
        """Add the gradients that steps left for parameters to their `grad`."""
        commit(gradients)

    def flush(self) -> None:
        """Start queued work for the GPU, if there is one."""
        if not self.device.is_cuda:
            return
        begin = time.perf_counter()
        waiting, statistics = queue(), self.statistics
        launches, uploads = waiting.launches, waiting.uploads
        waiting.flush()
        statistics.launches += waiting.launches - launches
        statistics.uploads += waiting.uploads - uploads
        statistics.host_seconds += time.perf_counter() - begin

    def start(self) -> list[str]:
        """Start queued work for the GPU; return the names of its kernels."""
        names = queue().waiting() if self.device.is_cuda else []
        self.flush()
        return names

    def close(self) -> None:
        """Forget the graph's steps after its last run."""


class Observer(StepActions):
    """Forwards every action to `upstream`; a subclass adds its checks."""

    def __init__(self, upstream: StepActions) -> None:
        super().__init__(upstream.device, upstream.statistics)
        self.upstream = upstream

    def begin(self) -> None:
        self.upstream.begin()

    def forward(self, step: StepRun, arena: Array) -> None:
        self.upstream.forward(step, arena)

    def backward(self, step: StepRun, arena: Array) -> None:
        self.upstream.backward(step, arena)

    def add_gradients(self, step: StepRun, arena: Array) -> None:
        self.upstream.add_gradients(step, arena)

    def clear(self, block: Block) -> None:
        self.upstream.clear(block)

    def commit(self, gradients: Sequence[StepGradients]) -> None:
        self.upstream.commit(gradients)

    def close(self) -> None:
        self.upstream.close()


Wrap = Callable[[StepActions], Observer]
"""Makes an observer around another one."""
