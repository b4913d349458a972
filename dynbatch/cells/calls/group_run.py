"""`GroupRun`: the loop of one group of a region's calls, on its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.linear_maps import WeightGradients, stream_gradients
from dynbatch.cells.loop_arrays import LoopArrays, loop_elements
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, Scratch, columns_of
from dynbatch.kernels.c.gathers import (
    ROWS,
    BoundBatches,
    BoundTable,
    GatherTables,
    gather_tasks,
    give_back_tasks,
)
from dynbatch.kernels.c.runtime.tasks import Tasks
from dynbatch.kernels.gathers import GatherTable, gather, give_back
from dynbatch.kernels.runtime import parallel
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


def elements(region: CallRegion, backward: bool, keeps: bool, dtype: DType) -> int:
    """Scratch elements that one pass over a region needs."""
    return sum(
        [
            loop_elements(group.cell, group.calls, region.most(number), dtype, keeps, backward)
            for number, group in enumerate(region.groups)
        ]
    )


class GroupRun:
    """The loop of one group.

    Attributes:
        is_in_c: whether batches run in C, gathers and all.
        arrays:  by name, as generated code wants them.
        results: in backward, gradients of what the calls returned, (count, width).
    """

    def __init__(self, region: CallRegion, number: int, batch: Batch) -> None:
        self.group = region.groups[number]
        self.cell = self.group.cell
        self._region = region
        self._number = number
        self._most = region.most(number)
        self._batch = batch
        self._native = self.cell.in_c.functions(batch.dtype)
        self._loop = self._native or self.cell.numpy
        self.is_in_c = self._native is not None and not self.cell.generic
        self.arrays: Arrays = {}
        self._returns_ahead: list[BoundTable] = []
        self._returns: list[BoundTable] = []
        self._generic: dict[str, GenericStep] = {}

    def begin(self, scratch: Scratch, tasks: Tasks, xs: Sequence[Ragged]) -> None:
        """Set the arrays of forward."""
        memories = [xs[source] for source in self.group.memories]
        chosen = self._region.chosen_memories(self._number) if memories else {}
        for number, op in self.cell.generic.items():
            self._generic[f"G{number}"] = GenericStep(
                op, memories, self._most, self._batch.dtype, self._batch.keeps, chosen=chosen
            )
        self._take_arrays(scratch, tasks, backward=False)
        self._batch.launches += len(self.cell.stream_maps)

    def begin_backward(
        self, scratch: Scratch, tasks: Tasks, dy: Array, xs: Sequence[Ragged],
        dxs: Sequence[Ragged | None],
    ) -> None:  # fmt: skip
        """Set the arrays of backward, and where generic operators' gradients go."""
        self.results, self._sink = self.group.results.of(dy), ShardGradients()
        memories, gradients = [xs[source] for source in self.group.memories], []
        for memory, source in zip(memories, self.group.memories, strict=True):
            dx = dxs[source]
            gradients.append(memory.like(np.zeros_like(memory.values)) if dx is None else dx)
        for step in self._generic.values():
            step.give_gradients_to(self._sink)
            step.memories, step.memory_gradients = memories, gradients
        self._take_arrays(scratch, tasks, backward=True)

    def _take_arrays(self, scratch: Scratch, tasks: Tasks, backward: bool) -> None:
        saved = None
        if self._batch.keeps or backward:
            names = [b.name for b in self.cell.storage.packed]
            saved = {name: self._batch.saved[f"{self._number}:{name}"] for name in names}
        rows, count = slice(0, self.group.calls), self.group.calls
        arrays = LoopArrays(self.cell, count, [self._most], scratch, tasks, saved, backward)
        self.arrays = arrays.of_shard(0, arrays.of_all(count), rows, rows)
        self.arrays |= self._generic | {"given": False}

    # Around the batches ---------------------------------------------------------------------------

    def bind(
        self, values: Sequence[Array], gradients: Sequence[Array | None] | None = None
    ) -> None:
        """Set the arrays behind the region's spaces, and in backward their gradients' arrays."""
        self._ahead, self._gathers = self._tables("X", values)
        if gradients is not None:
            whole = GatherTable(np.arange(self.group.calls))
            self._gathers.append((self.arrays["dY"], whole, [self.results]))
            self._returns_ahead, self._returns = self._tables("dX", gradients)
        if not self.is_in_c:
            self._run = self._loop.bind(gradients is not None, self.arrays)

    def _tables(
        self, letter: str, spaces: Sequence[Array | None]
    ) -> tuple[list[BoundTable], list[BoundTable]]:
        """The tables of streams, of their values (X) or gradients (dX), and all that these meet.

        First of what is known before the first batch, then of the rest.
        """
        tables: tuple[list[BoundTable], list[BoundTable]] = [], []
        for k, stream in enumerate(self.group.streams):
            if letter == "X" or k in self.cell.reached:
                sources = [spaces[space] for space in stream.spaces]
                tables[not stream.ahead].append(
                    (self.arrays[f"{letter}{k}"], stream.table, sources)
                )
        return tables

    def ahead(self, tasks: Tasks, maps: bool) -> None:
        """Gather what is known before the first batch.

        Args:
            maps: whether to make its maps too, for all calls at once.
        """
        count = self.group.calls
        tasks.then(*[[each] for each in gather_tasks(self._ahead, count)])
        self._batch.launches += len(self._ahead)
        if maps and self.cell.stream_maps and self._native is not None:
            tasks.then([self._native.steps(0, self.arrays, [(0, count, 0, -1)])])
        elif maps and self.cell.stream_maps:
            tasks.then([partial(self.cell.numpy.ahead, self.arrays)])

    def write_outputs(self, y: Array, tasks: Tasks) -> None:
        """Write what the calls returned into the region's value."""
        results, whole = self.group.results, GatherTable(np.arange(self.group.calls))
        for leaf, columns in enumerate(self.cell.exports):
            values = columns_of(self.arrays, columns)
            table: BoundTable = (results.values(y, leaf), whole, [values])
            tasks.then(gather_tasks([table], self.group.calls))
        self._batch.launches += len(self.cell.columns)

    def finish(self, tasks: Tasks) -> WeightGradients:
        """The gradients of weights, and of what was known before the first batch."""
        cell, arrays, count = self.cell, self.arrays, self.group.calls
        gradients = self._batch.parameter_gradients()
        if self._generic:
            tasks.run()
        for step in self._generic.values():
            step.finish()
        self._sink.pass_on(gradients)
        outs, spans = {k: arrays[f"dX{k}"] for k in cell.reached}, parallel.shards(count, ROWS)
        tasks.then(*[stream_gradients(cell, arrays, outs, None, span) for span in spans])
        weights = WeightGradients(cell, gradients, tasks)
        for numbers in cell.map_groups:
            xs = [columns_of(arrays, cell.map_inputs[number]) for number in numbers]
            weights.add(numbers, xs, columns_of(arrays, cell.of_maps[numbers[0]]))
        tasks.then(give_back_tasks(self._returns_ahead, count))
        around = len(cell.stream_maps) + len(self._returns_ahead)
        self._batch.launches += len(cell.maps) + around
        return weights

    # Batches --------------------------------------------------------------------------------------

    def batch(self, t: int, first: int, end: int) -> None:
        """Run batch t, rows first … end - 1, forward or backward."""
        for into, table, sources in self._gathers:
            gather(sources, table, first, end, into)
        self._run([(t, (first, end, end - first, -1))])
        for dx, table, gradients in self._returns:
            give_back(dx, table, first, end, gradients)

    def in_c(self, is_backward: bool) -> BoundBatches:
        """The pass over batches as C runs it."""
        assert self._native is not None
        run, product, places = 0, 0, []
        for own in self._of_threads(is_backward):
            run, each, product = self._native.entry(is_backward, own)
            places.append(each)
        elements = sum([p.size for p in self.cell.parameters])
        tables = GatherTables(self._gathers), GatherTables(self._returns)
        return BoundBatches(run, np.stack(places), product, *tables, elements)

    def _of_threads(self, is_backward: bool) -> Iterator[Arrays]:
        """The arrays of each thread that may run a part of a batch: temporary values are its own.

        There are as many as the room for the largest batch holds.
        """
        buffers = self.cell.gradients.temporary if is_backward else self.cell.storage.temporary
        for k in range(max(1, min(parallel.available(), self._most // ROWS))):
            own = {b.name: self.arrays[b.name][k * ROWS :] for b in buffers}
            yield self.arrays | own

    def launches(self, is_backward: bool) -> int:
        """Kernels of a batch."""
        gathers = sum([not x.ahead for x in self.group.streams])
        if not is_backward:
            return gathers + self.cell.launches
        return 2 * gathers + 1 + self.cell.launches_backward

    def argument(self, stream: int) -> Array:
        """The rows of a stream."""
        rows: Array = self.arrays[f"X{stream}"]
        return rows

    def gradients(self) -> tuple[Array, dict[int, Array]]:
        """After backward: gradients of what the calls returned, side by side (count, width), and
        of what they were given, (count, width of it) by stream.
        """
        given = self.cell.program.num_given
        return self.results, {k: self.arrays[f"dX{k}"] for k in self.cell.reached if k < given}
