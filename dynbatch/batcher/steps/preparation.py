"""`StepMaker`: puts the nodes of a run into batch steps, in one part or several.

From here on nodes know their blocks; nothing is planned yet.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from dynbatch.backend import Device, DType
from dynbatch.batcher.schedule.plan import Plan, Structure
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.schedule.reached import results_reached, signatures_of_operators
from dynbatch.batcher.schedule.schedule import numbers_of, schedule, schedule_structure
from dynbatch.batcher.steps.alias import AliasStep, ColumnsStep, column_cuts, columns_among
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.block_batch import BlockBatch, ResumedBatch
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.places import Cut
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.blocks.call import BlockCall, BlockResult
from dynbatch.blocks.program import BlockProgram
from dynbatch.blocks.resumed_call import ResumedCall
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation


class PartNodes(NamedTuple):
    """The nodes that one part of a run computes.

    nodes: in a topological order.
    roots: those of them at which backward begins; None where there is no backward.
    """

    nodes: Sequence[Operation]
    roots: Sequence[Node] | None = None


class Preparation:
    """The batch steps of a run. Its nodes know their blocks until it is forgotten.

    Attributes:
        nodes:     all that it computes.
        plans:     one for each part whose nodes were scheduled.
        numbers:   `numbers_of` each.
        parts:     the steps of each, stage by stage.
        scheduled: when all was known, by perf_counter.
    """

    def __init__(self) -> None:
        self.nodes: list[Operation] = []
        self.plans: list[Plan] = []
        self.numbers: list[bytes] = []
        self.parts: list[list[list[StepRun]]] = []
        self.scheduled = 0.0

    @property
    def by_part(self) -> list[list[StepRun]]:
        """The steps of each part, in order."""
        return [[step for stage in part for step in stage] for part in self.parts]

    @property
    def steps(self) -> list[StepRun]:
        return [step for part in self.parts for stage in part for step in stage]

    @property
    def parts_in_order(self) -> list[list[list[StepRun]]]:
        return self.parts if len(self.parts) < 2 else with_common(self.parts)

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Forget it where what was to be done with it failed."""
        if error is not None:
            self.forget()

    def forget(self) -> None:
        """Leave the nodes as if they had never been prepared."""
        for step in self.steps:
            forget(step)
        for node in self.nodes:
            node._block = None
        self.nodes, self.plans, self.numbers, self.parts = [], [], [], []


class StepMaker:
    """Makes the batch steps of one graph.

    Args:
        dtype:  of all values.
        device: for which; it need not be there, unless they are to run.
        policy: a name of `policies.POLICIES`, or a function.
    """

    def __init__(self, dtype: DType, device: Device, policy: str | Policy) -> None:
        self._dtype = dtype
        self._device = device
        self._policy = policy
        self._stages = 0

    def prepare(self, parts: Iterable[PartNodes], kept: Container[int]) -> Preparation:
        """Put nodes into batches.

        Args:
            parts: of the run. One may depend on those before it having been taken.
            kept:  indices of nodes that must have a value and a gradient of their own.
        """
        with Preparation() as preparation:
            for part in parts:
                preparation.nodes += part.nodes
                preparation.parts.append(self._part(preparation, part, kept) if part.nodes else [])
        preparation.scheduled = time.perf_counter()
        return preparation

    def _part(
        self, preparation: Preparation, asked: PartNodes, kept: Container[int]
    ) -> list[list[StepRun]]:
        nodes, roots = asked
        preparation.numbers.append(numbers_of(nodes, roots))
        plan = schedule(nodes, self._policy, roots, preparation.numbers[-1])
        if preparation.plans:
            plan = replace(plan, part=len(preparation.plans))
        preparation.plans.append(plan)
        stages: list[list[StepRun]] = []
        part = len(preparation.plans) - 1
        for numbers in plan.stages:
            groups: list[list[list[StepRun]]] = []
            for number in numbers:
                signature, members = plan.steps[number]
                batch = [nodes[i] for i in members]
                if isinstance(batch[0], BlockCall):
                    program = batch[0].program
                    results = None if roots is None else results_reached(program, signature)
                    groups.append(self._block_stages(cast("list[BlockCall]", batch), results))
                else:
                    groups.append(self._stages_of(batch, kept))
                for step in itertools.chain(*groups[-1]):
                    step.planned = part, number
            stages += side_by_side(groups)
        for stage in stages:
            for step in stage:
                step.stage = self._stages
            self._stages += 1
        return stages

    def _stages_of(self, nodes: Sequence[Operation], kept: Container[int]) -> list[list[StepRun]]:
        """The step of one batch, if it runs anything."""
        if isinstance(nodes[0], BlockResult):
            for node in cast("Sequence[BlockResult]", nodes):
                node.take_place()
            return []
        # A kept node needs values of its own, and then all of its step do: its gradient is that of
        # its readers alone.
        is_kept = any([node.index in kept for node in nodes])
        return [[self._step(nodes, nodes[0].is_alias and not is_kept)]]

    def _block_stages(
        self, calls: Sequence[BlockCall], results: tuple[int, ...] | None
    ) -> list[list[StepRun]]:
        """The steps of a block's operators, for all calls at once.

        Args:
            results: the operators at which backward begins; None where there is no backward.
        """
        first = calls[0]
        batch = ResumedBatch(first) if isinstance(first, ResumedCall) else BlockBatch(calls)
        program = batch.program
        plan = self._operators_plan(program, results)
        columns = columns_among(program, plan)
        stages: list[list[StepRun]] = []
        for stage in plan.stages:
            stages.append([])
            for number in stage:
                operators = plan.steps[number].nodes
                is_alias = program.operators[operators[0]].node.is_alias
                is_alias = is_alias and not any([k in program.results for k in operators])
                nodes, cuts = Members(batch, operators), None
                if operators[0] in columns:
                    cuts = column_cuts(nodes, self._dtype)
                stages[-1].append(self._step(nodes, is_alias, cuts))
        stages[0][0].lower_bound = plan.lower_bound
        batch.settle()
        return stages

    def _operators_plan(self, program: BlockProgram, results: tuple[int, ...] | None) -> Plan:
        plan: Plan | None = program.plans.get((self._policy, results))
        if plan is None:
            signatures = program.signatures
            if results is not None:
                signatures = signatures_of_operators(program, results)
            structure = Structure(signatures, program.edges)
            plan = program.plans[self._policy, results] = schedule_structure(
                structure, self._policy
            )
        return plan

    def _step(self, nodes: Any, is_alias: bool, cuts: Sequence[Cut] | None = None) -> StepRun:
        begin = time.perf_counter()
        if cuts is not None:
            step: StepRun = ColumnsStep(nodes, cuts)
        else:
            step = AliasStep(nodes) if is_alias else StepRun(nodes, self._dtype, self._device)
        step.prepare_seconds = time.perf_counter() - begin
        return step


def side_by_side(groups: Sequence[Sequence[Sequence[StepRun]]]) -> list[list[StepRun]]:
    """The stages of groups that do not read each other, which may run at the same time."""
    if len(groups) == 1:
        return [list(stage) for stage in groups[0]]
    return [
        [step for stage in stages for step in stage]
        for stages in itertools.zip_longest(*groups, fillvalue=())
    ]


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
    # What a common step reads must run before it, so it is common as well.
    while waiting:
        step = waiting.pop()
        if step not in common:
            common.add(step)
            waiting += [maker[block][1] for block in _read([step]) if block in maker]
    before = [[s for s in stage if s in common] for part in parts[:-1] for stage in part]
    apart = [[[s for s in stage if s not in common] for stage in part] for part in parts]
    return [before, *apart]


def _read(steps: Iterable[StepRun]) -> list[Block]:
    return [block for step in steps for source in step.sources for block in source.blocks]


def forget(step: StepRun) -> None:
    """Cut every reference between nodes and arrays."""
    if isinstance(step.nodes, Members):
        step.nodes.forget()
    else:
        for node in step.nodes:
            node._block = None
    step.let_go()
