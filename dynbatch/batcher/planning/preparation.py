"""`Preparation`: the batch steps of a run, in one part or several, before anything has run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step import StepRun
from dynbatch.nodes.operation import Operation


class Preparation:
    """What is known of a run before its layout.

    Attributes:
        nodes: all that it computes.
        plans: one for each list of nodes that was scheduled.
        parts: the steps of each, stage by stage.
    """

    def __init__(self) -> None:
        self.nodes: list[Operation] = []
        self.plans: list[Plan] = []
        self.parts: list[list[list[StepRun]]] = []

    @property
    def by_part(self) -> list[list[StepRun]]:
        """The steps of each part, in order."""
        return [[step for stage in part for step in stage] for part in self.parts]

    @property
    def steps(self) -> list[StepRun]:
        """In the order in which they were prepared."""
        return [step for part in self.parts for stage in part for step in stage]

    @property
    def parts_in_order(self) -> list[list[list[StepRun]]]:
        """The parts as stages take them: what is common to several comes first."""
        return self.parts if len(self.parts) < 2 else with_common(self.parts)

    def forget(self) -> None:
        """Leave the nodes as if they had never been prepared."""
        for step in self.steps:
            forget(step)
        for node in self.nodes:
            node._block = None
        self.nodes, self.plans, self.parts = [], [], []


def with_common(parts: Sequence[Sequence[Sequence[StepRun]]]) -> list[list[list[StepRun]]]:
    """The parts without what several of them read, which becomes a part before them.

    A parameter as a value, say, is computed for the first part, and read by the others as well.
    What reads all parts, the last, is not asked.
    """
    maker = {
        block: (number, step)
        for number, part in enumerate(parts[:-1])
        for stage in part
        for step in stage
        for block in step.blocks
    }
    common: set[StepRun] = set()
    waiting = [
        maker[block][1]
        for number, part in enumerate(parts[:-1])
        for block in _read([step for stage in part for step in stage])
        if block in maker and maker[block][0] != number
    ]
    while waiting:
        step = waiting.pop()
        if step not in common:
            common.add(step)
            waiting += [maker[block][1] for block in _read([step]) if block in maker]
    before = [[s for s in stage if s in common] for part in parts[:-1] for stage in part]
    own = [[[s for s in stage if s not in common] for stage in part] for part in parts]
    return [before, *own]


def _read(steps: Iterable[StepRun]) -> list[Block]:
    return [block for step in steps for source in step.sources for block in source.blocks]


def forget(step: StepRun) -> None:
    """Cut every reference between nodes and arrays."""
    for node in step.nodes:
        node._block = None
    for block in step.blocks:
        block.array = block.gradient = None
    step.batch.saved.clear()
    step.batch.memo.clear()
    step.batch.ports, step.batch.port_gradients = [], []
    step.batch.inputs, step.batch.output = (), None
