"""The forms of values in a graph of precision "bfloat16": rounded, in 16 bits, float32 again.

`planning/narrowing.py` says which values are rounded, and a plan where they lie in which form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from dynbatch.backend import Array
from dynbatch.batcher.planning.narrowing import Ranges
from dynbatch.batcher.planning.stages import Stage, StageKind
from dynbatch.batcher.steps.placement import Left, halves
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels.narrow import narrow, round_values, widen
from dynbatch.nodes.batch import Batch


def round_step(step: StepRun, ranges: Sequence[Ranges]) -> None:
    """Round what a step's forward wrote to bfloat16, but for what is to be narrowed.

    Args:
        ranges: of each block, the elements to round; none where all are bfloat16 numbers.
    """
    for number, (block, rounded) in enumerate(zip_longest(step.blocks, ranges)):
        for start, end in rounded or () if number not in step.placement.narrow else ():
            round_values(block.values().flat[start:end])
    if step.batch.saved:
        names = step.node_type.narrow_saved(step.batch)
        round_saved(step.batch, [name for name in names if name not in step.placement.narrow])


def round_saved(batch: Batch, names: Iterable[str]) -> None:
    """Round what forward has left by these names."""
    for name in names:
        round_values(batch.saved[name].reshape(-1))


def change_form(stage: Stage, arena: Array) -> None:
    """Do what a stage that narrows or widens is for."""
    place_widened(stage)
    for step in stage.steps:
        if stage.kind is StageKind.WIDEN_SAVED:
            step.place_saved(arena)
        for left in _changed(stage, step):
            if isinstance(left, str):
                flat = step.batch.saved[left].reshape(-1)
            else:
                flat = step.blocks[left].values().flat
            short = halves(arena, step.placement.narrow[left].offset, flat.size)
            if stage.kind is StageKind.NARROW:  # which rounds what it cuts
                narrow(flat, short)
            else:
                widen(short, flat)


def place_widened(stage: Stage) -> None:
    """Have what a stage makes float32 again read from where it will lie."""
    for step in stage.steps if stage.kind is not StageKind.NARROW else ():
        for left in _changed(stage, step):
            wide = step.placement.widened[left]
            if isinstance(left, str):
                saved = step.placement.saved
                saved = {**saved, left: (wide, *saved[left][1:])}
                step.placement = step.placement._replace(saved=saved)
            else:
                step.blocks[left].start = wide.offset


def _changed(stage: Stage, step: StepRun) -> list[Left]:
    """List what a stage changes, of all that a step left."""
    if stage.kind is StageKind.NARROW:
        return [*step.placement.narrow]
    of_saved = stage.kind is StageKind.WIDEN_SAVED
    return [left for left in step.placement.widened if isinstance(left, str) is of_saved]
