"""`MemoryPlan`: the places of a run's blocks, decided before the first kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dynbatch.batcher.planning.lifetimes import LifetimeWalk
from dynbatch.batcher.planning.stages import (
    NO_SAVING,
    MemorySaving,
    Stage,
    StageKind,
    StepGraph,
)
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.placement import BackwardPlacement, Left, Placement
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.memory import Interval
from dynbatch.memory.planner import TIGHT, assign_offsets, fullest_stage


@dataclass(frozen=True)
class MemoryPlan:
    """The stages of a run, and the places of all its blocks.

    Nothing of it changes but the offsets of the blocks, which `placed` finds.

    Attributes:
        graph:      the steps of the run.
        stages:     what runs, in order.
        placements: where each new step's forward has its arrays; `recomputed`, its second forward;
            `backward`, each step's backward.
        gradients:  the place of each block's gradient.
        blocks:     all blocks of the arena.
        scratch:    workspaces of a run without a loss. All its values stay, and with them their
            arena; these have one of their own.
        chains:     those of `blocks` that share a place.
        intervals:  the blocks, and last one for each of these chains.
        elements:   of the arena; `scratch_elements`, of the scratch arena.
    """

    graph: StepGraph
    stages: Sequence[Stage]
    placements: Mapping[StepRun, Placement]
    recomputed: Mapping[StepRun, Placement]
    backward: Mapping[StepRun, BackwardPlacement]
    gradients: Mapping[Block, Interval]
    blocks: Sequence[Interval]
    scratch: Sequence[Interval]
    chains: Sequence[Sequence[Interval]]
    intervals: Sequence[Interval]
    elements: int = 0
    scratch_elements: int = 0

    def placed(self) -> MemoryPlan:
        """The plan with an offset for every block."""
        elements, scratch_elements = _place(self.intervals), _place(self.scratch)
        for chain, interval in zip(reversed(self.chains), reversed(self.intervals), strict=False):
            for block in chain:
                block.offset = interval.offset
        return replace(self, elements=elements, scratch_elements=scratch_elements)

    def fullest(self) -> tuple[int, int]:
        """The first stage with the most elements alive, and their number: no arena is smaller."""
        return fullest_stage(self.intervals)

    def best_left_wide(self, stage: int, most: int) -> list[tuple[StepRun, Left]]:
        """The parts of what steps leave that had best stay float32 if here is the peak.

        The largest, at most so many, that are there in both forms; else the largest that are
        float32 again, for which 16 bits gained nothing here. See `MemorySaving.wide`.
        """
        in_both: Counter[tuple[StepRun, Left]] = Counter()
        last: Counter[tuple[StepRun, Left]] = Counter()
        for step, placement in self.placements.items():
            for left, narrow in placement.narrow.items():
                again = placement.widened.get(left)
                if again is None and isinstance(left, str):
                    continue  # backward reads it in 16 bits
                cut, first, second = [
                    block is not None and block.first <= stage <= block.last
                    for block in (narrow, placement.place(left), again)
                ]
                if cut and (first or second):
                    in_both[step, left] += narrow.size
                elif second:
                    last[step, left] += narrow.size
        return [key for key, _ in (in_both or last).most_common(most)]

    @property
    def waits(self) -> bool:
        """Whether what makes a weight's gradient waits for more rows of it."""
        gathered = [len(s.steps) for s in self.stages if s.kind is StageKind.MULTIPLY]
        return len(gathered) < sum(gathered)


ONE_BY_ONE = 4
"""Plans that leave one block more float32; later ones leave ever more at once."""


def plan_narrow(graph: StepGraph, in_place: bool) -> tuple[MemoryPlan, MemorySaving]:
    """The plan of a run with an offset for every block, and with what makes the arena smaller in
    16 bits.

    One after the other is left float32, as long as no more is alive at the peak: no bit depends on
    it. After `ONE_BY_ONE` plans two more are at once, then four and so on: a network of hundreds of
    steps takes ten plans. Plans are placed from the last one back until one has few gaps.
    """
    plan, saving = plan_lifetimes(graph, NO_SAVING, in_place), NO_SAVING
    candidates = [(plan, saving)]
    while keys := plan.best_left_wide(plan.fullest()[0], 1 << max(0, len(candidates) - ONE_BY_ONE)):
        saving = replace(saving, wide=saving.wide.union(keys))
        other = plan_lifetimes(graph, saving, in_place)
        if other.fullest()[1] > plan.fullest()[1] * TIGHT:
            break
        plan = other
        candidates.append((plan, saving))
    every = [(step, each) for step, left in graph.narrowed.items() for each in left]
    widest = MemorySaving(wide=frozenset(every))
    candidates.append((plan_lifetimes(graph, widest, in_place), widest))
    best: tuple[MemoryPlan, MemorySaving] | None = None
    for plan, saving in reversed(candidates):
        live = plan.fullest()[1]
        if best is None or live < best[0].elements:
            plan = plan.placed()
            if best is None or plan.elements < best[0].elements:
                best = plan, saving
            if live <= candidates[0][0].fullest()[1] and plan.elements <= TIGHT * live:
                break
    assert best is not None
    return best


def plan_lifetimes(graph: StepGraph, saving: MemorySaving, in_place: bool) -> MemoryPlan:
    """The plan of a run without offsets.

    Args:
        graph:    its steps.
        saving:   what it does to need less memory.
        in_place: whether blocks may be written over others (see `in_place`).
    """
    walk = LifetimeWalk(graph, saving, in_place)
    chains = [] if walk.pairs is None else walk.pairs.chains()
    chained = {block for chain in chains for block in chain}
    alone = [block for block in walk.blocks if block not in chained] if chains else walk.blocks
    lasts = [max([block.last for block in chain]) for chain in chains]
    heads = [replace(chain[0], last=last) for chain, last in zip(chains, lasts, strict=True)]
    return MemoryPlan(
        graph,
        tuple(walk.stages),
        walk.placements,
        walk.recomputed,
        walk.backward,
        walk.gradients,
        walk.blocks,
        walk.scratch,
        chains,
        (*alone, *heads),
    )


def plan_memory(
    graph: StepGraph, saving: MemorySaving = NO_SAVING, in_place: bool = True
) -> MemoryPlan:
    """The plan of a run, with an offset for every block; see `plan_lifetimes`."""
    if graph.rounds and saving is NO_SAVING:
        return plan_narrow(graph, in_place)[0]
    return plan_lifetimes(graph, saving, in_place).placed()


def _place(blocks: Sequence[Interval]) -> int:
    """Give each block its offset; return the arena's size."""
    columns = ["size", "first", "last", "alignment"]
    rows = [[getattr(block, name) for block in blocks] for name in columns]
    elements, offsets = assign_offsets(*rows)
    for block, offset in zip(blocks, offsets, strict=True):
        block.offset = offset
    return elements
