"""Operators of calls without generated code, and the memories that they read, in a region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.cells.calls.region import CallGroup, CallRegion
from dynbatch.cells.generic import GenericStep
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
    memories = [packed(xs, sources) for sources in group.memories]
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


def place_memories(
    group: CallGroup, arrays: dict[str, Any], xs: Sequence[Ragged], dxs: Sequence[Ragged | None]
) -> None:
    """Where generic operators read memories in backward, and where they add their gradients."""
    memories, gradients = [], []
    for sources in group.memories:
        memory = packed(xs, sources)
        dx = dxs[sources[0]] if len(sources) == 1 else None
        memories.append(memory)
        gradients.append(memory.like(np.zeros_like(memory.values)) if dx is None else dx)
    for number in group.cell.generic:
        arrays[f"G{number}"].memories = memories
        arrays[f"G{number}"].memory_gradients = gradients


def finish(group: CallGroup, arrays: dict[str, Any], dxs: Sequence[Ragged | None]) -> None:
    """After the first batch, backward: what is left of the memories' gradients."""
    steps: list[GenericStep] = [arrays[f"G{number}"] for number in group.cell.generic]
    for step in steps:
        step.finish()
    for place, sources in enumerate(group.memories):
        if len(sources) > 1:
            gradient = steps[0].memory_gradients[place]
            assert gradient is not None  # `place_memories` made them all
            for k, source in enumerate(sources):
                dx = dxs[source]
                if dx is not None:
                    dx.values[...] += gradient[k]


def packed(xs: Sequence[Ragged], sources: Sequence[int]) -> Ragged:
    """The rows of a memory of all sentences."""
    if len(sources) == 1:
        return xs[sources[0]]
    parts = [xs[source] for source in sources]
    lengths = [length for part in parts for length in part.lengths]
    return Ragged(np.concatenate([part.values for part in parts]), lengths)
