"""Advice after memory ran out: a mini-batch size, or a limit, that would fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dynbatch.batcher.planning.memory_use import EARLIER, GAPS, MemoryUse
from dynbatch.batcher.planning.run_plan import Request
from dynbatch.errors import OutOfMemory

LARGEST = 4
"""The number of causes, and of node types, in the message."""


def advice(
    request: Request, estimate: Callable[[Request], MemoryUse], room: int | None
) -> list[str]:
    """Lines for the error of a run whose pool is out of memory.

    Args:
        estimate: what a run would hold.
        room:     bytes that the pool still has, where that is known.
    """
    use = estimate(replace(request, limit=None))
    held = use.by_cause.get(EARLIER, 0)
    causes = sorted(use.by_cause.items(), key=lambda item: -item[1])
    sizes = [f"{what} {size:,}" for what, size in causes if size and what != GAPS]
    types = [f"{what} {size:,}" for what, size in list(use.by_type.items())[:LARGEST]]
    lines = [f"  peak: {use.peak_bytes:,} bytes: {', '.join(sizes)}; by type {', '.join(types)}"]
    if request.loss is None or room is None:
        return lines
    most, *_ = request.micro_batches()
    own = use.peak_bytes - held
    if most > 1 and room < own:
        fits = room * most // own
        smaller = f"about {fits} of its {most} sentences fit" if fits else "not one sentence fits"
        lines.append(f"  fix:  {smaller} in the {room:,} bytes left")
    try:
        fitted = estimate(replace(request, limit=held + room))
    except OutOfMemory:
        return lines
    lines.append(f"  fix:  graph.backward(loss, memory_limit={held + room}) fits, {fitted.saving}")
    return lines
