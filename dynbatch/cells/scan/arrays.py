"""The arrays of one pass over a batch of scans, and their sizes."""

from __future__ import annotations

import numpy as np

from dynbatch.cells.generic import room_of
from dynbatch.cells.loop_arrays import LoopArrays, loop_elements
from dynbatch.cells.scan.prefix import Chunk, Shard, extents, of_pass
from dynbatch.compiler.arrays import Arrays, Scratch
from dynbatch.compiler.c.native import NativeFunctions
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.kernels.c.runtime.tasks import NativeTasks
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array


def scan_arrays(
    cell: CompiledCell, chunks: list[Chunk], scratch: Scratch, native: NativeFunctions | None,
    tasks: NativeTasks | None,
) -> LoopArrays:  # fmt: skip
    """Arrays with the rows of the largest chunk."""
    rows = max([chunk.order.size for chunk in chunks])
    running = [shard.sentences.size for shard in chunks[0].shards]
    return LoopArrays(cell, rows, running, scratch, native, tasks)


def of_shards(
    arrays: LoopArrays, chunk: Chunk, wide: dict[str, Array]
) -> list[tuple[Shard, Arrays]]:
    """Everything that generated code reads, for each shard of a chunk."""
    pairs = zip(chunk.shards, chunk.spans, strict=True)
    return [(x, arrays.of_shard(k, wide, x.span, kept)) for k, (x, kept) in enumerate(pairs)]


def lengths_of(batch: Batch) -> Array:
    """Tokens of each sentence."""
    return batch.array("length", np.int64)


def saved(batch: Batch) -> dict[str, tuple[int, int]]:
    """The values that forward leaves: all packed ones, or only the states between chunks."""
    cell: CompiledCell = batch.first.cell
    chunks = extents(lengths_of(batch), batch.recompute)
    if not batch.recompute:
        return {b.name: (chunks[0].rows, b.width) for b in cell.storage.packed}
    between = sum([extent.running for extent in chunks[1:]])
    states = cell.program.states if between else []
    return {f"S{k}": (between, state.width) for k, state in enumerate(states)}


def elements(batch: Batch, backward: bool) -> int:
    """Scratch elements that one pass needs."""
    cell: CompiledCell = batch.first.cell
    chunks = of_pass(lengths_of(batch), batch.recompute, batch.keeps and not backward)
    rows, recomputes = max([extent.rows for extent in chunks]), batch.recompute > 0
    keeps, running = batch.keeps, len(batch.nodes)
    states = sum([state.width for state in cell.program.states])
    total = loop_elements(cell, rows, running, batch.dtype, backward, keeps, recomputes)
    total += _memory_elements(batch, backward) + running * states * (1 + backward)
    if not (backward or keeps):
        total += max([extent.running for extent in chunks[1:]], default=0) * states
    return total


def _memory_elements(batch: Batch, backward: bool) -> int:
    """Elements of all memories, and in backward of what is summed for them."""
    cell: CompiledCell = batch.first.cell
    rows: list[int] = type(batch.first).memory_rows(batch)
    total = sum([n * v.width for n, v in zip(rows, cell.program.memories, strict=True)])
    return total + sum([room_of(op, rows) for op in cell.generic.values() if backward])
