"""`GroupRun`: the loop of one group of a region's calls, on its arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dynbatch.backend import DType
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.calls.region_memory import bind_memories, generic_steps
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
from dynbatch.kernels.c.linear_gradients import scatter_tasks
from dynbatch.kernels.c.runtime.tasks import NativeTasks
from dynbatch.kernels.gathers import gather, give_back
from dynbatch.kernels.linear_gradients import scatter_products
from dynbatch.kernels.runtime import parallel
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


def elements(region: CallRegion, backward: bool, keeps: bool, dtype: DType) -> int:
    """Scratch elements that one pass over a region needs."""
    return sum(
        [
            loop_elements(group.cell, group.count, region.most(number), dtype, backward, keeps)
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
        self._batch = batch
        self._native = self.cell.in_c.functions(batch.dtype)
        self.loop = self._native or self.cell.numpy
        self.is_in_c = self._native is not None and not self.cell.generic
        self.arrays: Arrays = {}

    # Forward --------------------------------------------------------------------------------------

    def begin(self, scratch: Scratch, tasks: NativeTasks, xs: Sequence[Ragged]) -> None:
        """Set the arrays of forward."""
        batch, cell = self._batch, self.cell
        arrays = self._loop_arrays(scratch, tasks)
        arrays.add_forward(streams=True)
        arrays.add_values(self._saved() if batch.keeps else None)
        arrays.add_temporary(cell.storage.temporary)
        most = self._region.most(self._number)
        self.arrays = self._all_of(arrays)
        self.arrays |= generic_steps(self._region, self._number, most, batch, xs)
        batch.launches += len(cell.stream_maps)

    def _loop_arrays(self, scratch: Scratch, tasks: NativeTasks) -> LoopArrays:
        running, later = [self._region.most(self._number)], tasks if self.is_in_c else None
        return LoopArrays(self.cell, self.group.count, running, scratch, self._native, later)

    def _all_of(self, arrays: LoopArrays) -> Arrays:
        rows = slice(0, self.group.count)
        return arrays.of_shard(0, arrays.wide(rows.stop), rows, rows)

    def _saved(self) -> dict[str, Array]:
        """What backward reads, by name."""
        names = [b.name for b in self.cell.storage.packed]
        return {name: self._batch.saved[f"{self._number}:{name}"] for name in names}

    def gather_ahead(self, values: Sequence[Array], tasks: NativeTasks) -> None:
        """Gather what is known before the first batch.

        Args:
            values: the arrays behind the region's spaces.
        """
        self._values = [[values[space] for space in x.spaces] for x in self.group.streams]
        if self.is_in_c:
            tables = self._tables("X", self._values, True)
            gathers = gather_tasks(tables, self.group.count, self._batch.dtype)
            tasks.then(*[[each] for each in gathers])
        else:
            self._gather(True, 0, self.group.count)
        self._batch.launches += sum([x.ahead for x in self.group.streams])

    def _tables(
        self, letter: str, arrays: Sequence[Sequence[Array | None]], ahead: bool
    ) -> list[BoundTable]:
        """The tables of streams, of their values (X) or gradients (dX) and all that these meet."""
        wanted = self.cell.reached if letter == "dX" else range(len(arrays))
        streams = [(k, self.group.streams[k]) for k in sorted(wanted)]
        return [
            (self.arrays[f"{letter}{k}"], stream.table, arrays[k])
            for k, stream in streams
            if stream.ahead is ahead
        ]

    def _gather(self, ahead: bool, first: int, end: int) -> None:
        for k, stream in enumerate(self.group.streams):
            if stream.ahead is ahead:
                gather(self._values[k], stream.table, first, end, self.arrays[f"X{k}"])

    def maps_ahead(self, tasks: NativeTasks) -> None:
        """Make the maps of streams that are known before the first batch, for all calls at once."""
        if self._native is None or not self.is_in_c:
            self.loop.ahead(self.arrays)
        elif self.cell.stream_maps:
            tasks.then([self._native.steps(0, self.arrays, [(0, self.group.count, 0, -1)])])

    def write_outputs(self, y: Array, tasks: NativeTasks) -> None:
        """Write what the calls returned into the region's value."""
        rows = self.group.results_in(y)
        for columns, first in zip(self.cell.exports, self.cell.columns, strict=True):
            values, out = (columns_of(self.arrays, columns), rows[:, first : first + columns.width])
            if self.is_in_c:
                tables: list[BoundTable] = [(out, None, [values])]
                tasks.then(gather_tasks(tables, self.group.count, self._batch.dtype))
            else:
                out[...] = values
        self._batch.launches += len(self.cell.columns)

    # Batches --------------------------------------------------------------------------------------

    def bind(self, is_backward: bool) -> Callable[[int, int, int], None]:
        """What runs batch t, rows first … end - 1, forward or backward."""
        if not is_backward:
            run = self.loop.bind_forward(self.arrays)

            def forward(t: int, first: int, end: int) -> None:
                self._gather(False, first, end)
                run([(t, (first, end, end - first, -1))])

            return forward
        run_back = self.loop.bind_backward(self.arrays)

        def backward(t: int, first: int, end: int) -> None:
            self._gather(False, first, end)
            np.copyto(self.arrays["dY"][first:end], self.results[first:end])
            run_back([(first, end, [(t, (first, end, end - first, -1))])])
            self._give_back(False, first, end)

        return backward

    def in_c(self, is_backward: bool) -> BoundBatches:
        """The pass over batches as C runs it."""
        assert self._native is not None
        gathers = self._tables("X", self._values, False)
        returns: list[BoundTable] = []
        if is_backward:
            gathers.append((self.arrays["dY"], None, [self.results]))
            returns = self._tables("dX", self._gradients, False)
        run, product, places = 0, 0, []
        for own in self._of_threads(is_backward):
            run, each, product = self._native.entry(is_backward, own)
            places.append(each)
        elements = sum([p.size for p in self.cell.parameters])
        tables = GatherTables(gathers), GatherTables(returns)
        return BoundBatches(run, np.stack(places), product, *tables, elements)

    def _of_threads(self, is_backward: bool) -> Iterator[Arrays]:
        """The arrays of each thread that may run a part of a batch: temporary values are its own.

        There are as many as the room for the largest batch holds.
        """
        buffers = self.cell.gradient_buffers if is_backward else self.cell.storage.temporary
        most = self._region.most(self._number)
        for k in range(max(1, min(parallel.available(), most // ROWS))):
            own = {b.name: self.arrays[b.name][k * ROWS :] for b in buffers}
            yield self.arrays | own

    def launches(self, is_backward: bool) -> int:
        """Kernels of a batch."""
        gathers = sum([not x.ahead for x in self.group.streams])
        if not is_backward:
            return gathers + self.cell.launches
        return 2 * gathers + 1 + self.cell.launches_backward + len(self.cell.numpy.factors)

    # Backward -------------------------------------------------------------------------------------

    def begin_backward(
        self, scratch: Scratch, tasks: NativeTasks, dy: Array, xs: Sequence[Ragged],
        dxs: Sequence[Ragged | None],
    ) -> None:  # fmt: skip
        """Set the arrays of backward, and where generic operators' gradients go."""
        cell = self.cell
        self.results = self.group.results_in(dy)
        arrays = self._loop_arrays(scratch, tasks)
        arrays.add_streams()
        arrays.add_values(self._saved())
        arrays.add_backward()
        arrays.add_temporary(cell.gradient_buffers)
        generic = {f"G{number}": self.arrays[f"G{number}"] for number in cell.generic}
        self.arrays = self._all_of(arrays) | generic | {"given": False}
        self._sink = ShardGradients()
        for number in cell.generic:
            self.arrays[f"G{number}"].give_gradients_to(self._sink)
        bind_memories(self.group, self.arrays, xs, dxs)

    def bind_gradients(self, gradients: Sequence[Array | None]) -> None:
        """Set the gradients' arrays behind the region's spaces; None for unwanted ones."""
        self._gradients = [[gradients[space] for space in x.spaces] for x in self.group.streams]

    def finish(self, tasks: NativeTasks) -> WeightGradients:
        """The gradients of weights, and of what was known before the first batch."""
        cell, arrays, count = self.cell, self.arrays, self.group.count
        for number in cell.generic:
            arrays[f"G{number}"].finish()
        gradients = self._batch.parameter_gradients()
        self._sink.pass_on(gradients)
        for products in stream_gradients(cell, arrays, {k: arrays[f"dX{k}"] for k in cell.reached}):
            if self.is_in_c:
                spans = parallel.shards(count, ROWS)
                tasks.then(*[scatter_tasks(*products, span) for span in spans])
            else:
                scatter_products(*products)
        weights = WeightGradients(cell, gradients, tasks if self.is_in_c else None)
        for numbers in cell.map_groups:
            xs = [columns_of(arrays, cell.map_inputs[number]) for number in numbers]
            weights.add(numbers, xs, columns_of(arrays, cell.of_maps[numbers[0]]))
        if self.is_in_c:
            tables = self._tables("dX", self._gradients, True)
            tasks.then(give_back_tasks(tables, count, self._batch.dtype))
        else:
            self._give_back(True, 0, count)
        ahead = [x.ahead for k, x in enumerate(self.group.streams) if k in cell.reached]
        self._batch.launches += len(cell.maps) + len(cell.stream_maps) + sum(ahead)
        return weights

    def _give_back(self, ahead: bool, first: int, end: int) -> None:
        for k in sorted(self.cell.reached):
            stream, dx = self.group.streams[k], self.arrays[f"dX{k}"]
            if stream.ahead is ahead:
                give_back(dx, stream.table, first, end, self._gradients[k])

    def gradients(self) -> tuple[Array, dict[int, Array]]:
        """After backward: gradients of what the calls returned, side by side (count, width), and
        of what they were given, (count, width of it) by stream.
        """
        given = self.cell.program.num_given
        return self.results, {k: self.arrays[f"dX{k}"] for k in self.cell.reached if k < given}
