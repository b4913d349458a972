"""Options of a run to hold less memory, each with its cost and the memory it frees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dynbatch.batcher.planning.lifetimes import END
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.planning.stages import StageKind, StepGraph
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.memory import Interval

SLOWER = 0.25
"""Added to the cost of each choice of `recompute_choices` after the first."""
MOST_OPTIONS = 256
"""Above this many steps of a part, adjacent steps form one option."""


@dataclass(frozen=True, eq=False)
class RecomputeOption:
    """One way for a run to hold less memory.

    Args:
        steps:     of one signature: one in a whole mini-batch, one in each of its parts.
        cost:      multiply-adds that it adds.
        recompute: of each, how it makes again itself what it left (`Batch.recompute`). Without,
            all of its forward runs again, before its backward.
    """

    steps: tuple[StepRun, ...]
    cost: float
    recompute: tuple[int, ...] = ()

    def __str__(self) -> str:
        name = self.steps[0].node_type.__name__
        if not self.recompute:
            return name
        least, most = min(self.recompute), max(self.recompute)
        return f"{name} in segments of {f'{least} to ' * (least < most)}{most} steps"


def options_of(
    graph: StepGraph, parts: Sequence[Sequence[StepRun]], freed: Collection[StepRun]
) -> list[RecomputeOption]:
    """All options of a run's steps.

    Steps of the same place in all parts are one option; in a long graph, those near each other too.

    Args:
        freed: steps whose values no backward reads.
    """
    groups: dict[tuple[int, int], list[StepRun]] = {}
    for part in parts:
        near = 1 + len(part) // MOST_OPTIONS
        met: Counter[int] = Counter()
        for step in part:
            signature = step.nodes[0].sig
            met[signature] += 1
            if can_run_again(graph, step) and step not in freed:
                groups.setdefault((signature, met[signature] // near), []).append(step)
    costs = _costs(parts, freed)
    options = []
    for steps in groups.values():
        cost = sum([costs[step] for step in steps])
        options.append(RecomputeOption(tuple(steps), cost))
        choices = [step.node_type.recompute_choices(step.batch) for step in steps]
        for k in range(max(map(len, choices)) if all(choices) else 0):
            segments = tuple([some[min(k, len(some) - 1)] for some in choices])
            options.append(RecomputeOption(tuple(steps), cost * (1 + k * SLOWER), segments))
    return options


def _costs(parts: Sequence[Sequence[StepRun]], freed: Collection[StepRun]) -> dict[StepRun, int]:
    """Costs of running each step again, with the inputs that are freed after forward."""
    costs: dict[StepRun, int] = {}
    maker = {block: step for part in parts for step in part for block in step.blocks}
    for part in parts:
        for step in part:
            read = {maker[b] for s in step.sources for b in s.blocks if b in maker}
            costs[step] = step.node_type.operations(step.batch) + sum(
                [costs.get(one, 0) for one in read if one in freed]
            )
    return costs


def can_run_again(graph: StepGraph, step: StepRun) -> bool:
    if step.block not in graph.requires_grad or step in graph.fused:
        return False
    return graph.kept.isdisjoint(step.blocks)


def freed_after_forward(plan: MemoryPlan) -> frozenset[StepRun]:
    """Steps whose values no backward reads: freeing them costs nothing."""

    def ends_in_forward(block: Interval) -> bool:
        return block.last < END and plan.stages[block.last].kind is StageKind.FORWARD

    return frozenset(
        [
            step
            for step, placement in plan.placements.items()
            if can_run_again(plan.graph, step)
            and not step.node_type.saves
            and all([ends_in_forward(block) for block in placement.blocks])
        ]
    )
