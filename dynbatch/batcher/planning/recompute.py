"""What a run can do to hold less: each option with what it costs and what it frees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dynbatch.batcher.planning.memory_plan import END, MemoryPlan
from dynbatch.batcher.planning.stages import StageKind
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step import StepRun

SLOWER = 0.25
"""Added to the cost of each choice of `recompute_choices` after the first."""
MOST_OPTIONS = 256
"""Steps of a part above which neighbours are one option."""


@dataclass(frozen=True, eq=False)
class RecomputeOption:
    """Something that a run can do to hold less.

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

    def held(self, layout: MemoryPlan, peak: int) -> int:
        """Elements less at a stage with it."""
        own = layout.sequence[peak].steps
        if not self.recompute:
            return sum([_held(step, peak) for step in self.steps if step not in own])
        return sum(
            [
                _segmented(step, steps, peak, own)
                for step, steps in zip(self.steps, self.recompute, strict=True)
            ]
        )


def options_of(
    parts: Sequence[Sequence[StepRun]], freed: Collection[StepRun]
) -> list[RecomputeOption]:
    """All that the steps of a run can do.

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
            if can_run_again(step) and step not in freed:
                groups.setdefault((signature, met[signature] // near), []).append(step)
    costs = _costs(parts, freed)
    found = []
    for steps in groups.values():
        cost = sum([costs[step] for step in steps])
        found.append(RecomputeOption(tuple(steps), cost))
        choices = [step.node_type.recompute_choices(step.batch) for step in steps]
        for k in range(max(map(len, choices)) if all(choices) else 0):
            segments = tuple([some[min(k, len(some) - 1)] for some in choices])
            found.append(RecomputeOption(tuple(steps), cost * (1 + k * SLOWER), segments))
    return found


def _costs(parts: Sequence[Sequence[StepRun]], freed: Collection[StepRun]) -> dict[StepRun, int]:
    """Of running each step again, with what it reads that is freed after forward."""
    costs: dict[StepRun, int] = {}
    maker = {block: step for part in parts for step in part for block in step.blocks}
    for part in parts:
        for step in part:
            read = {maker[b] for s in step.sources for b in s.blocks if b in maker}
            costs[step] = step.node_type.operations(step.batch) + sum(
                [costs.get(one, 0) for one in read if one in freed]
            )
    return costs


def can_run_again(step: StepRun) -> bool:
    """Whether a step may free what it made, to make it again in backward."""
    return step.block.requires_grad and not step.fused and not any([b.kept for b in step.blocks])


def freed_after_forward(layout: MemoryPlan) -> frozenset[StepRun]:
    """Steps whose values no backward reads: they cost nothing to free, and may be made again."""
    stages = layout.sequence
    return frozenset(
        [
            step
            for stage in stages
            if stage.kind is StageKind.FORWARD
            for step in stage.steps
            if can_run_again(step)
            and not step.node_type.saves()
            and all(
                [_last(b) < END and stages[_last(b)].kind is StageKind.FORWARD for b in step.blocks]
            )
        ]
    )


def _last(block: Block) -> int:
    assert block.interval is not None
    return block.interval.last


def _segmented(step: StepRun, recompute: int, peak: int, own: Sequence[StepRun]) -> int:
    """Elements less at a stage if a step makes again itself what it left."""
    saved = [interval for interval, _, _ in step.saved.values()]
    before = sum([interval.size for interval in saved if interval.first <= peak <= interval.last])
    if not before and step not in own:
        return 0
    batch, kept = step.batch, step.batch.recompute
    batch.recompute = recompute
    after = sum([rows * width for rows, width in step.node_type.saved(batch).values()])
    if step in own:
        after += step.node_type.workspace_backward(batch)
        before += 0 if step.workspace_backward is None else step.workspace_backward.size
    batch.recompute = kept
    return before - after


def _held(step: StepRun, peak: int) -> int:
    """Elements that a step holds at a stage, and would not if it were run again later."""
    held = [block.interval for block in step.blocks]
    held += [interval for interval, _, _ in step.saved.values()]
    return sum([i.size for i in held if i is not None and i.first < peak <= i.last])
