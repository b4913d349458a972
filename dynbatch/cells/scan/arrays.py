"""The arrays of one pass over a batch of scans, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dynbatch.cells.generic import room_of
from dynbatch.cells.linear_maps import backward_elements, forward_elements
from dynbatch.cells.scan.prefix import Chunk, Shard, extents, of_pass
from dynbatch.compiler.arrays import Arrays, Scratch, laid_out, rows_of, temporary
from dynbatch.compiler.buffers import ProgramBuffer
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array


class ScanArrays:
    """Arrays by name, as generated code wants them: rows of a chunk, cut for each shard.

    Args:
        chunks: of the scan.
        scratch: where arrays come from.
        in_c:    whether the loop runs in C.

    Attributes:
        shared: what all chunks and shards read.
        kept:   arrays with the rows of all chunks.
    """

    def __init__(self, chunks: list[Chunk], scratch: Scratch, in_c: bool) -> None:
        self.shared: Arrays = {}
        self._in_c = in_c
        self._scratch = scratch
        self._most = max([chunk.order.size for chunk in chunks])
        self._sentences = [shard.sentences.size for shard in chunks[0].shards]
        self._packed: list[tuple[ProgramBuffer, Array]] = []
        self.kept: dict[str, Array] = {}
        self._of_shards: list[Arrays] = [{} for _ in self._sentences]

    def add_packed(self, buffer: ProgramBuffer) -> None:
        """An array with a row for each token of a chunk."""
        self._packed.append((buffer, self._scratch.take(self._most, buffer.width)))

    def add_kept(self, buffer: ProgramBuffer, rows: Array) -> None:
        """An array for all chunks: (N, width) elements, in the layout's order."""
        self.kept[buffer.name] = laid_out(rows, buffer, self._in_c)

    def add_temporary(self, *groups: Sequence[ProgramBuffer]) -> None:
        """Arrays with a row for each running sentence. A shard needs one group at a time."""
        width = max([_sum(buffers) for buffers in groups])
        for arrays, sentences in zip(self._of_shards, self._sentences, strict=True):
            room = self._scratch.take(sentences, width).reshape(-1)
            for buffers in groups:
                scratch = Scratch(room)
                for buffer in buffers:
                    arrays[buffer.name] = temporary(sentences, buffer, scratch, self._in_c)

    def add_of_shards(self, name: str, arrays: Iterable[Any]) -> None:
        """Give each shard an array of its own."""
        for known, array in zip(self._of_shards, arrays, strict=True):
            known[name] = array

    def wide(self, chunk: Chunk) -> dict[str, Array]:
        """The packed arrays, with the rows of one chunk; not those that are kept."""
        count = chunk.order.size
        return {
            buffer.name: laid_out(rows[:count], buffer, self._in_c) for buffer, rows in self._packed
        }

    def of_shards(self, chunk: Chunk, wide: dict[str, Array]) -> list[tuple[Shard, Arrays]]:
        """Everything that generated code reads, for each shard of a chunk."""
        return [
            (
                shard,
                own
                | self.shared
                | {name: rows_of(array, shard.span) for name, array in wide.items()}
                | {name: rows_of(array, span) for name, array in self.kept.items()},
            )
            for shard, span, own in zip(chunk.shards, chunk.spans, self._of_shards, strict=True)
        ]


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
    recomputes = batch.recompute > 0
    states = _sum(cell.program.states)
    per_row, temporaries = _sum(cell.program.streams), [_sum(cell.storage.temporary)]
    if recomputes or not (backward or batch.keeps):
        per_row += _sum(cell.storage.packed)
    total = _memory_elements(batch, backward)
    if backward:
        per_row += _sum(cell.backward_rows)
        temporaries = [_sum(cell.gradient_buffers), *temporaries[:recomputes]]
        total += backward_elements(cell, batch.dtype) + len(batch.nodes) * states
    if recomputes or not backward:
        total += forward_elements(cell, not recomputes, batch.dtype)
    if not (backward or batch.keeps):
        total += max([extent.running for extent in chunks[1:]], default=0) * states
    total += max([extent.rows for extent in chunks]) * per_row
    return total + len(batch.nodes) * (states + max(temporaries))


def _memory_elements(batch: Batch, backward: bool) -> int:
    """Elements of all memories, and in backward of what is summed for them."""
    cell: CompiledCell = batch.first.cell
    rows: list[int] = type(batch.first).memory_rows(batch)
    total = sum([n * v.width for n, v in zip(rows, cell.program.memories, strict=True)])
    return total + sum([room_of(op, rows) for op in cell.generic.values() if backward])


def _sum(wide: Iterable[Any]) -> int:
    return sum([each.width for each in wide])
