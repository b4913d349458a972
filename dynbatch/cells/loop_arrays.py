"""The arrays of a loop in one pass, by the names that generated code uses, and their sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dynbatch.backend import Array, DType
from dynbatch.cells.linear_maps import packed_weights, weight_elements
from dynbatch.compiler.arrays import Arrays, Scratch
from dynbatch.compiler.buffers import ProgramBuffer
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.kernels.runtime.tasks import Tasks


class LoopArrays:
    """Arrays by name: rows of all tokens or calls, cut for each shard; and rows of its steps.

    Attributes:
        kept: arrays with the rows of all chunks.

    Args:
        rows:    rows of all shards; of a scan those of its largest chunk.
        running: of each shard, the rows of its largest step.
        scratch: where arrays come from.
        tasks:   where packing of weights is written down.
        saved:   what forward makes for backward, (N, width) by name; None if it has no rows that
            are kept from one pass to the other.
        backward, recomputes: which pass it is, and whether backward runs forward again.
        elsewhere: names of arrays that lie elsewhere.
    """

    def __init__(
        self, cell: CompiledLoop, rows: int, running: Sequence[int], scratch: Scratch,
        tasks: Tasks, saved: Mapping[str, Array] | None, backward: bool, recomputes: bool = False,
        elsewhere: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._shared: Arrays = {}
        wide, groups = [*cell.stream_rows], []
        if recomputes or not backward:
            self._shared |= packed_weights(cell, 0, scratch, not recomputes, tasks)
            groups.append(cell.storage.temporary)
        if backward:
            self._shared |= packed_weights(cell, 1, scratch, False, tasks)
            wide += cell.backward_rows
            groups.append(cell.gradients.temporary)
        wide += cell.storage.packed if saved is None else []
        wide = _without(elsewhere, wide)
        self._wide = [(b, scratch.take(rows, b.width)) for b in wide]
        self.kept = {} if saved is None else {b.name: saved[b.name] for b in cell.storage.packed}
        self._of_steps = [self._temporary(scratch, count, groups) for count in running]

    def _temporary(
        self, scratch: Scratch, rows: int, groups: Sequence[Sequence[ProgramBuffer]]
    ) -> Arrays:
        room = scratch.take(rows, max(map(_width, groups))).reshape(-1)
        arrays: Arrays = {}
        for buffers in groups:
            rooms = Scratch(room)
            arrays |= {b.name: rooms.take(rows, b.width) for b in buffers}
        return arrays

    def of_all(self, count: int) -> Arrays:
        return self.kept | {b.name: rows[:count] for b, rows in self._wide}

    def of_shard(self, number: int, wide: Arrays, span: slice, kept: slice) -> Arrays:
        """Everything that generated code reads, for one shard.

        Args:
            span, kept: its rows of the packed arrays, and of those that are kept.
        """
        return (
            self._of_steps[number]
            | self._shared
            | {b.name: wide[b.name][span] for b, _ in self._wide}
            | {name: array[kept] for name, array in self.kept.items()}
        )


def loop_elements(
    cell: CompiledLoop, rows: int, running: int, dtype: DType, keeps: bool,
    backward: bool, recomputes: bool = False, elsewhere: Collection[str] = (),
) -> int:  # fmt: skip
    """Scratch elements of a loop's arrays in one pass.

    Args:
        rows, running: rows of all shards, and of all shards' largest steps.
        keeps: whether what forward makes for backward has memory of its own.
        elsewhere: names of arrays that lie elsewhere.
    """
    total, per_row, temporary = 0, _width(_without(elsewhere, cell.stream_rows)), 0
    if recomputes or not backward:
        total += weight_elements(cell, 0, not recomputes, dtype)
        temporary = _width(cell.storage.temporary)
    if backward:
        total += weight_elements(cell, 1, False, dtype)
        per_row += _width(_without(elsewhere, cell.backward_rows))
        temporary = max(temporary, _width(cell.gradients.temporary))
    per_row += 0 if keeps else _width(cell.storage.packed)
    return total + rows * per_row + running * temporary


def _without(names: Collection[str], rows: Iterable[ProgramBuffer]) -> list[ProgramBuffer]:
    return [buffer for buffer in rows if buffer.name not in names]


def _width(wide: Iterable[Any]) -> int:
    return sum([each.width for each in wide])
