"""The arrays of a loop in one pass, by the names that generated code uses, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynbatch.backend import DType
from dynbatch.cells.linear_maps import (
    backward_elements,
    backward_weights,
    forward_elements,
    forward_weights,
)
from dynbatch.compiler.arrays import Arrays, Scratch, laid_out, rows_of, temporary
from dynbatch.compiler.buffers import ProgramBuffer
from dynbatch.compiler.c.native import NativeFunctions
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.kernels.c.runtime.tasks import NativeTasks
from dynbatch.parameter import Array


class LoopArrays:
    """Arrays by name: rows of all tokens or calls, cut for each shard; and rows of its steps.

    Args:
        rows:    rows of all shards; of a scan those of its largest chunk.
        running: of each shard, the rows of its largest step.
        scratch: where arrays come from.
        native:  the loop in C, or None.
        tasks:   where packing of weights is written down, to be done later.

    Attributes:
        shared: what all shards read.
        kept:   arrays with the rows of all chunks.
    """

    def __init__(
        self, cell: CompiledLoop, rows: int, running: Sequence[int], scratch: Scratch,
        native: NativeFunctions | None, tasks: NativeTasks | None,
    ) -> None:  # fmt: skip
        self.shared: Arrays = {}
        self.kept: dict[str, Array] = {}
        self.scratch = scratch
        self._cell = cell
        self._native = native
        self._tasks = tasks
        self._rows = rows
        self._running = running
        self._packed: list[tuple[ProgramBuffer, Array]] = []
        self._of_shards: list[Arrays] = [{} for _ in running]

    def add_forward(self, streams: bool) -> None:
        """Weights and streams of forward.

        Args:
            streams: see `forward_weights`.
        """
        weights = forward_weights(self._cell, self.scratch, streams, self._native, self._tasks)
        self.shared.update(weights)
        self._add_packed(self._cell.stream_rows)

    def add_backward(self) -> None:
        """Weights and gradients of backward."""
        weights = backward_weights(self._cell, self.scratch, self._native, self._tasks)
        self.shared.update(weights)
        self._add_packed(self._cell.backward_rows)

    def add_streams(self) -> None:
        """Streams, where forward is not run again."""
        self._add_packed(self._cell.stream_rows)

    def add_values(self, saved: Mapping[str, Array] | None) -> None:
        """What forward makes for backward.

        Args:
            saved: rows that are kept from one pass to the other, (N, width) by name; or None.
        """
        if saved is None:
            self._add_packed(self._cell.storage.packed)
        else:
            for b in self._cell.storage.packed:
                self.kept[b.name] = laid_out(saved[b.name], b, self._native is not None)

    def _add_packed(self, buffers: Iterable[ProgramBuffer]) -> None:
        self._packed += [(b, self.scratch.take(self._rows, b.width)) for b in buffers]

    def add_temporary(self, *groups: Sequence[ProgramBuffer]) -> None:
        """Arrays with a row for each row of a step. A shard needs one group at a time."""
        width = max([_width(buffers) for buffers in groups])
        for arrays, running in zip(self._of_shards, self._running, strict=True):
            room = self.scratch.take(running, width).reshape(-1)
            for buffers in groups:
                scratch = Scratch(room)
                for b in buffers:
                    arrays[b.name] = temporary(running, b, scratch, self._native is not None)

    def add_of_shards(self, name: str, arrays: Iterable[Any]) -> None:
        """Give each shard an array of its own."""
        for known, array in zip(self._of_shards, arrays, strict=True):
            known[name] = array

    def wide(self, count: int) -> dict[str, Array]:
        """The packed arrays, with so many rows; not those that are kept."""
        in_c = self._native is not None
        return {b.name: laid_out(rows[:count], b, in_c) for b, rows in self._packed}

    def of_shard(self, number: int, wide: dict[str, Array], span: slice, kept: slice) -> Arrays:
        """Everything that generated code reads, for one shard.

        Args:
            span, kept: its rows of the packed arrays, and of those that are kept.
        """
        return (
            self._of_shards[number]
            | self.shared
            | {name: rows_of(array, span) for name, array in wide.items()}
            | {name: rows_of(array, kept) for name, array in self.kept.items()}
        )


def loop_elements(
    cell: CompiledLoop, rows: int, running: int, dtype: DType,
    backward: bool, keeps: bool, recomputes: bool = False,
) -> int:  # fmt: skip
    """Scratch elements of a loop's arrays in one pass.

    Args:
        rows, running: rows of all shards, and of all shards' largest steps.
        keeps:      whether what forward makes for backward has memory of its own.
        recomputes: whether backward runs forward again.
    """
    per_row, temporaries, weights = _width(cell.stream_rows), [_width(cell.storage.temporary)], 0
    if recomputes or not (backward or keeps):
        per_row += _width(cell.storage.packed)
    if backward:
        per_row += _width(cell.backward_rows)
        temporaries = [_width(cell.gradient_buffers), *temporaries[:recomputes]]
        weights = backward_elements(cell, dtype)
    if recomputes or not backward:
        weights += forward_elements(cell, not recomputes, dtype)
    return weights + rows * per_row + running * max(temporaries)


def _width(wide: Iterable[Any]) -> int:
    return sum([each.width for each in wide])
