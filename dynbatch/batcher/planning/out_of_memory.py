"""Advice after memory ran out: a mini-batch size, or a limit, that would fit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from dynbatch.batcher.planning.memory_use import EARLIER, GAPS, MemoryUse
from dynbatch.batcher.planning.run_plan import Request
from dynbatch.errors import OutOfMemory

LARGEST = 4
"""The number of causes, and of node types, in the message."""


def advised(
    error: OutOfMemory,
    request: Request,
    estimate: Callable[[Request], MemoryUse],
    room: int | None,
) -> OutOfMemory:
    """The error of a run whose pool is out of memory, with what takes it and what would fit.

    Args:
        error:    of the pool. Its fix stands where nothing is known that fits.
        estimate: what a run would hold.
        room:     bytes that the pool still has, where that is known.
    """
    use = estimate(replace(request, limit=None))
    held = use.by_cause.get(EARLIER, 0)
    causes = sorted(use.by_cause.items(), key=lambda item: -item[1])
    sizes = [f"{what} {size:,}" for what, size in causes if size and what != GAPS]
    types = [f"{what} {size:,}" for what, size in list(use.by_type.items())[:LARGEST]]
    lines, fixes = str(error).split("\n"), list[str]()
    lines += [f"  peak: {use.peak_bytes:,} bytes: {', '.join(sizes)}; by type {', '.join(types)}"]
    if request.loss is None or room is None:
        return OutOfMemory("\n".join(lines))
    most, *_ = request.micro_batches()
    of_run = use.peak_bytes - held
    if most > 1 and room < of_run:
        fits = room * most // of_run
        smaller = f"about {fits} of its {most} sentences fit" if fits else "not one sentence fits"
        fixes.append(f"{smaller} in the {room:,} bytes left")
    with suppress(OutOfMemory):
        fitted = estimate(replace(request, limit=held + room))
        fixes.append(f"graph.backward(loss, memory_limit={held + room}) fits, {fitted.saving}")
    if fixes:
        lines = [line for line in lines if not line.startswith("  fix:")]
        lines.append(f"  fix:  {'; '.join(fixes)}")
    return OutOfMemory("\n".join(lines))
