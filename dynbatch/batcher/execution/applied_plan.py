"""A memory plan is carried out: steps and blocks are told what it says of them.

Only here does anything of a plan get onto steps, blocks and batches.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.steps.step import StepRun
from dynbatch.parameter import Array


def apply(plan: MemoryPlan, arena: Array, scratch: Array | None) -> None:
    """Before the first kernel.

    Args:
        scratch: the arena of workspaces, where they have one of their own.
    """
    offsets, fused = plan.offsets, plan.graph.fused
    places = offsets if scratch is None else plan.scratch_offsets
    for block in plan.graph.kept:
        block.kept = True
    for step, placement in plan.placements.items():
        start = places[placement.workspace[0]] if placement.workspace else 0
        step.enter(placement, offsets, arena, start)
        step.fused, step.scratch = step in fused, scratch
    for step, backward in plan.backward.items():
        step.enter_backward(backward, offsets)
    for block, row in plan.gradients.items():
        block.gradient, block.gradient_start = arena, offsets[row]


def enter_again(plan: MemoryPlan, steps: Iterable[StepRun], arena: Array) -> None:
    """Forward of some steps runs once more, with its arrays elsewhere."""
    for step in steps:
        placement = plan.recomputed[step]
        start = plan.offsets[placement.workspace[0]] if placement.workspace else 0
        step.enter(placement, plan.offsets, arena, start)


def free(plan: MemoryPlan) -> None:
    """After the run: take away what was given to others on the way."""
    for step, placement in plan.placements.items():
        for block, row in zip(step.blocks, placement.blocks, strict=True):
            if not plan.outlives(row):
                block.array = None
        if any([not plan.outlives(row) for row, _, _ in placement.saved.values()]):
            step.batch.saved.clear()
    for block, row in plan.gradients.items():
        if not plan.outlives(row):
            block.gradient = None
