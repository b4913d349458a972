"""The forms of values in a graph of precision "bfloat16": rounded, in 16 bits, float32 again.

`planning/narrowing.py` says which values are rounded, and a plan where they lie in which form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from dynbatch.backend import Array
from dynbatch.batcher.planning.narrowing import Ranges
from dynbatch.batcher.planning.stages import Stage, StageKind
from dynbatch.batcher.steps.placement import halves
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels.narrow import narrow, round_values, widen
from dynbatch.nodes.batch import Batch


def round_step(step: StepRun, ranges: Sequence[Ranges]) -> None:
    """Round what a step's forward wrote to bfloat16, but for what is to be narrowed.

    Args:
        ranges: of each block, the elements to round; none where all are bfloat16 numbers.
    """
    for block, offset, rounded in zip_longest(step.blocks, step.narrow, ranges):
        for start, end in rounded or () if offset is None else ():
            round_values(block.values().flat[start:end])
    if step.batch.saved:
        names = step.node_type.narrow_saved(step.batch)
        round_saved(step.batch, [name for name in names if name not in step.narrow_saved])


def round_saved(batch: Batch, names: Iterable[str]) -> None:
    """Round what forward has left by these names."""
    for name in names:
        round_values(batch.saved[name].reshape(-1))


def change_form(stage: Stage, arena: Array) -> None:
    """Do what a stage that narrows or widens is for."""
    place_widened(stage)
    for step in stage.steps:
        if stage.kind is StageKind.NARROW:
            _narrow(step, arena)
        elif stage.kind is StageKind.WIDEN:
            _widen(step, arena)
        else:
            _widen_saved(step, arena)


def place_widened(stage: Stage) -> None:
    """Have what a stage makes float32 again read from where it will lie."""
    for step in stage.steps:
        if stage.kind is StageKind.WIDEN:
            for block, start in zip(step.blocks, step.widened, strict=True):
                if start is not None:
                    block.start = start
        elif stage.kind is StageKind.WIDEN_SAVED:
            for name, start in step.widened_saved.items():
                step.saved[name] = start, *step.saved[name][1:]


def _narrow(step: StepRun, arena: Array) -> None:
    """Round what forward wrote, and have the upper halves in the room for 16 bits."""
    for block, offset in zip(step.blocks, step.narrow, strict=True):
        if offset is not None:
            narrow(block.values().flat, halves(arena, offset, block.size))
    for name, offset in step.narrow_saved.items():
        flat = step.batch.saved[name].reshape(-1)
        narrow(flat, halves(arena, offset, flat.size))


def _widen(step: StepRun, arena: Array) -> None:
    for block, offset in zip(step.blocks, step.narrow, strict=True):
        if offset is not None:
            widen(halves(arena, offset, block.size), block.values().flat)


def _widen_saved(step: StepRun, arena: Array) -> None:
    step.place_saved(arena)
    for name in step.widened_saved:
        flat = step.batch.saved[name].reshape(-1)
        widen(halves(arena, step.narrow_saved[name], flat.size), flat)
