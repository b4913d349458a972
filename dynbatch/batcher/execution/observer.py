"""`Observer`: base of wrappers that watch an executor's actions on batch steps.

Observers wrap each other, as rmm's adaptors wrap memory resources: each does what lies beneath it
and adds one thing. At the bottom `StepActions` runs the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynbatch.backend import Array
from dynbatch.batcher.execution.stage_runner import StepActions
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step_run import StepRun


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

    def rounded(self, step: StepRun) -> None:
        self.upstream.rounded(step)

    def clear(self, block: Block) -> None:
        self.upstream.clear(block)

    def commit(self, gradients: Sequence[StepGradients]) -> None:
        self.upstream.commit(gradients)

    def close(self) -> None:
        self.upstream.close()


Wrap = Callable[[StepActions], Observer]
"""Makes an observer around another one."""
