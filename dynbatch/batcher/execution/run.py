"""`Run`: an unfinished run, the arrays it has on loan, and how its plan is carried out.

Arenas are on loan from a pool, and gradients of parameters may be half added. Only here does
anything of a plan get onto steps, blocks and batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from dynbatch.backend import Array, DType
from dynbatch.batcher.execution.record import RunTimes
from dynbatch.batcher.execution.stage_runner import StepActions
from dynbatch.batcher.planning.lifetimes import END
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.planning.stages import StepGraph
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import Claim, StashedGradients
from dynbatch.batcher.steps.preparation import Preparation
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.errors import CheckError
from dynbatch.memory import Pool
from dynbatch.parameter import Parameter


@dataclass
class Run:
    """An unfinished run, and the state before it.

    memory:      its plan, once it is applied.
    scratch:     an arena that nothing needs after the run.
    gradients:   of nodes that were kept, from an earlier backward, and where they begin.
    first:       the first step that it changes: its own, or with a backward perhaps any.
    stashed:     gradients of parameters from before a run that adds before the loss is known.
    claim:       of the parameters whose gradients it adds to.
    uploaded_bytes: of tables that were uploaded to a GPU, `uploaded_before` it and in it.
    """

    steps: int
    plans: int
    arenas: int
    preparation: Preparation = field(default_factory=Preparation)
    memory: MemoryPlan | None = None
    kernel_seconds: float = 0.0
    compile_seconds: float = 0.0
    times: RunTimes | None = None
    scratch: Array | None = None
    first: int = 0
    stashed: StashedGradients = field(default_factory=StashedGradients)
    gradients: list[tuple[Block, Array, int]] = field(default_factory=list)
    claim: Claim = field(default_factory=Claim)
    uploaded_before: int = 0
    uploaded_bytes: int = 0

    def stash_gradients(self, graph: StepGraph) -> None:
        """Stash what parts of a mini-batch, or products of a weight that several steps use, add to.

        They add before the loss is known.
        """
        adding = [step for steps in graph.gathered for step in steps]
        if len(self.preparation.parts) > 1:
            adding = self.preparation.steps
        self.stashed.put([p for step in adding for p in step.parameters])

    def drop_gradients(self, steps: Iterable[StepRun]) -> None:
        """Drop the node gradients of an earlier backward, so that only new ones can be read."""
        for block in [block for step in steps for block in step.blocks]:
            if block.gradient is not None:
                self.gradients.append((block, block.gradient, block.gradient_start))
                block.gradient = None

    def put_gradients_back(self) -> None:
        """Replace the node gradients of this backward by those of the earlier one."""
        for block in () if self.memory is None else self.memory.gradients:
            block.gradient = None
        for block, gradient, start in self.gradients:
            block.gradient, block.gradient_start = gradient, start


_size_of = itemgetter(1)


class Arenas:
    """The arenas of runs, one or two for each.

    Attributes:
        peak_bytes: the most of all arenas so far.
    """

    def __init__(self, pool: Pool, dtype: DType) -> None:
        self.peak_bytes = 0
        self._pool = pool
        self._dtype = dtype
        self._arenas: list[tuple[Array, int]] = []

    def __len__(self) -> int:
        return len(self._arenas)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(map(_size_of, self._arenas))

    def take(self, elements: int) -> Array:
        """Take one more arena of `elements` elements."""
        arena = self._pool.take(elements, self._dtype, label="a graph's arena")
        size = elements * arena.itemsize
        self._arenas.append((arena, size))
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        return arena

    def give(self, arena: Array) -> None:
        """Give an arena back."""
        (number,) = [k for k, (other, _) in enumerate(self._arenas) if other is arena]
        if self._pool.has_lent(arena):  # else an interrupt came right after it was given
            self._pool.give(arena)
        del self._arenas[number]

    def give_after(self, count: int) -> None:
        """Give back all but the first `count` arenas."""
        while len(self._arenas) > count:
            self.give(self._arenas[-1][0])


def add_left(actions: StepActions, steps: Sequence[StepRun], touched: list[Parameter]) -> None:
    """Add what steps left for parameters, after noting these: theirs may be half added."""
    gradients = [step.gradients for step in steps if step.gradients]
    touched += [parameter for each in gradients for parameter in each.parameters()]
    try:
        actions.commit(gradients)
    except CheckError:
        touched.clear()  # the check has put the gradients back
        raise
    for step in steps:
        step.gradients = None


def apply(plan: MemoryPlan, arenas: Arenas) -> tuple[Array, Array | None]:
    """Put the plan's blocks in their places in a new arena, before the first kernel.

    Returns:
        the arena; and that of workspaces, where they have one of their own.
    """
    arena = arenas.take(plan.elements)
    scratch = arenas.take(plan.scratch_elements) if plan.scratch else None
    for block in plan.graph.kept:
        block.kept = True
    for step, placement in plan.placements.items():
        step.enter(placement, arena)
        step.fused, step.scratch = step in plan.graph.fused, scratch
    for step, target in plan.backward.items():
        step.enter_backward(target)
    for block, interval in plan.gradients.items():
        block.gradient, block.gradient_start = arena, interval.offset
    return arena, scratch


def enter_again(plan: MemoryPlan, steps: Iterable[StepRun], arena: Array) -> None:
    """Prepare some steps to run forward once more, with arrays in other places."""
    for step in steps:
        step.enter(plan.recomputed[step], arena)


def free(plan: MemoryPlan) -> None:
    """Drop the arrays of blocks that do not outlive the run."""
    for step, placement in plan.placements.items():
        for block, interval in zip(step.blocks, placement.blocks, strict=True):
            if interval.last < END:
                block.array = None
        if any([interval.last < END for interval, _, _ in placement.saved.values()]):
            step.batch.saved.clear()
    for block, interval in plan.gradients.items():
        if interval.last < END:
            block.gradient = None
