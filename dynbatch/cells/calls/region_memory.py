"""A region's operators without generated code, and the memories that they read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.cells.calls.region import CallGroup, CallRegion
from dynbatch.cells.generic import GenericStep
from dynbatch.compiler.arrays import Arrays
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


def generic_steps(
    region: CallRegion, number: int, most: int, batch: Batch, xs: Sequence[Ragged]
) -> dict[str, GenericStep]:
    """The generic operators of one group, as generated code calls them.

    Args:
        most: calls of the group's largest batch.
        xs:   the region's packed inputs.
    """
    group = region.groups[number]
    if not group.cell.generic:
        return {}
    memories = [xs[source] for source in group.memories]
    chosen = chosen_memories(region, number) if memories else {}
    return {
        f"G{generic}": GenericStep(op, memories, most, batch.dtype, batch.keeps, chosen=chosen)
        for generic, op in group.cell.generic.items()
    }


def chosen_memories(region: CallRegion, number: int) -> dict[int, Array]:
    """The memories that calls read, for each batch that does not read the first ones in order.

    The others have fewer and fewer calls, as the steps of a scan.
    """
    group = region.groups[number]
    chosen = {}
    running = group.count
    for t, step in enumerate(region.batches):
        if step.group == number:
            read = group.memory_of[step.first : step.end]
            if read.size <= running and (read == np.arange(read.size)).all():
                running = read.size
            else:
                chosen[t] = read
    return chosen


def bind_memories(
    group: CallGroup, arrays: Arrays, xs: Sequence[Ragged], dxs: Sequence[Ragged | None]
) -> None:
    """Bind the memories that generic operators read in backward, and the memories' gradients."""
    memories, gradients = [xs[source] for source in group.memories], []
    for memory, source in zip(memories, group.memories, strict=True):
        dx = dxs[source]
        gradients.append(memory.like(np.zeros_like(memory.values)) if dx is None else dx)
    for number in group.cell.generic:
        arrays[f"G{number}"].memories = memories
        arrays[f"G{number}"].memory_gradients = gradients
