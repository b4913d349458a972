"""`Run`: a run that is not finished, and what there was before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynbatch.batcher.execution.record import RunTimes
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import Claim, StashedGradients
from dynbatch.batcher.steps.preparation import Preparation
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
