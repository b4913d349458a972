"""`Run`: a run that is not finished, and what there was before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dynbatch.batcher.execution.record import RunTimes
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import Claim, StashedGradients
from dynbatch.batcher.steps.preparation import Preparation
from dynbatch.batcher.steps.step import StepRun
from dynbatch.parameter import Array


@dataclass
class Run:
    """A run that is not finished, and what there was before it.

    memory:      its plan, once it is applied.
    scratch:     an arena that nothing needs after the run.
    gradients:   of nodes that were kept, from an earlier backward, and where they begin.
    first:       the first step that it changes: its own, or with a backward perhaps any.
    stashed:     gradients of parameters from before a run in parts.
    claim:       of the parameters whose gradients it adds to.
    """

    steps: int
    plans: int
    arenas: int
    preparation: Preparation = field(default_factory=Preparation)
    memory: MemoryPlan | None = None
    kernel_seconds: float = 0.0
    times: RunTimes | None = None
    scratch: Array | None = None
    first: int = 0
    stashed: StashedGradients = field(default_factory=StashedGradients)
    gradients: list[tuple[Block, Array, int]] = field(default_factory=list)
    claim: Claim = field(default_factory=Claim)

    def stash_gradients(self) -> None:
        """Stash gradients if a mini-batch runs in parts, which add before the loss is known."""
        if len(self.preparation.parts) > 1:
            self.stashed.put([p for step in self.preparation.steps for p in step.parameters])

    def drop_gradients(self, steps: Iterable[StepRun]) -> None:
        """Take away those of an earlier backward: what is read afterwards is of this one alone."""
        for block in [block for step in steps for block in step.blocks]:
            if block.gradient is not None:
                self.gradients.append((block, block.gradient, block.gradient_start))
                block.gradient = None

    def put_gradients_back(self) -> None:
        """Take away the gradients of this backward, and put back those of an earlier one."""
        for block in () if self.memory is None else self.memory.gradients:
            block.gradient = None
        for block, gradient, start in self.gradients:
            block.gradient, block.gradient_start = gradient, start
