"""`RegionRun`: runs the calls of one region, batch by batch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dynbatch.backend import DType
from dynbatch.cells.calls.region import CallGroup, CallRegion, Fetch, Inner
from dynbatch.cells.calls.region_memory import bind_memories, generic_steps
from dynbatch.cells.linear_maps import (
    WeightGradients,
    backward_elements,
    backward_weights,
    forward_elements,
    forward_weights,
    stream_gradients,
)
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, Scratch, columns_of, in_planes, temporary
from dynbatch.compiler.ir import Op, Origin
from dynbatch.compiler.numpy.interpreter import Block
from dynbatch.kernels.rows import add_rows_at
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class RegionRun:
    """One region: its arrays, group by group, from forward to backward."""

    def __init__(self, batch: Batch, region: CallRegion) -> None:
        self.batch = batch
        self.region = region
        self.arrays: list[Arrays] = []
        self.packed: list[dict[str, Array]] = []
        sizes = [0] * len(region.groups)
        for step in region.batches:
            sizes[step.group] = max(sizes[step.group], step.end - step.first)
        self._most = sizes
        self._native = [group.cell.in_c.functions(batch.dtype) for group in region.groups]
        pairs = zip(self._native, region.groups, strict=True)
        self._loops = [native or group.cell.numpy for native, group in pairs]

    @staticmethod
    def elements(region: CallRegion, backward: bool, keeps: bool, dtype: DType) -> int:
        """Scratch elements that one pass needs."""
        total = 0
        for number, group in enumerate(region.groups):
            cell, count = group.cell, group.count
            streams = sum([value.width for value in cell.program.streams])
            total += count * streams
            most = max([b.end - b.first for b in region.batches if b.group == number])
            if not backward:
                total += forward_elements(cell, True, dtype)
                total += most * sum([b.width for b in cell.storage.temporary])
                if not keeps:
                    total += count * sum([b.width for b in cell.storage.packed])
                continue
            total += backward_elements(cell, dtype)
            packed = sum([b.width for b in cell.packed_gradients])
            total += count * (streams + cell.width + packed)
            total += most * sum([b.width for b in cell.gradient_buffers])
        return total

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Array, xs: Sequence[Ragged]) -> None:
        """Gather known values, run batch after batch, then write the outputs side by side."""
        scratch = Scratch(self.batch.scratch)
        for number, group in enumerate(self.region.groups):
            arrays = self._streams(group, scratch)
            arrays.update(forward_weights(group.cell, scratch, True, self._native[number]))
            packed = {}
            for b in group.cell.storage.packed:
                rows = (
                    self.batch.saved[f"{number}:{b.name}"]
                    if self.batch.keeps
                    else scratch.take(group.count, b.width)
                )
                packed[b.name] = arrays[b.name] = in_planes(rows, b)
            for b in group.cell.storage.temporary:
                arrays[b.name] = temporary(self._most[number], b, scratch)
            arrays.update(generic_steps(self.region, number, self._most[number], self.batch, xs))
            self.arrays.append(arrays)
            self.packed.append(packed)
            self.batch.launches += len(group.cell.stream_maps)
        self._bind_inputs(xs)
        self._gather_ahead(xs)
        for loop, arrays in zip(self._loops, self.arrays, strict=True):
            loop.ahead(arrays)
        loops = zip(self._loops, self.arrays, strict=True)
        run = [loop.bind_forward(arrays) for loop, arrays in loops]
        for t, step in enumerate(self.region.batches):
            arrays = self.arrays[step.group]
            for k, fetch in step.fetches:
                self._gather(fetch, arrays[f"X{k}"][step.first : step.end])
            cell = self.region.groups[step.group].cell
            run[step.group]([(t, (step.first, step.end, step.end - step.first, -1))])
            self.batch.launches += len(step.fetches) + cell.launches
        self._outputs(y)

    def _streams(self, group: CallGroup, scratch: Scratch) -> Arrays:
        widths = [value.width for value in group.cell.program.streams]
        return {f"X{k}": scratch.take(group.count, width) for k, width in enumerate(widths)}

    def _gather_ahead(self, xs: Sequence[Ragged]) -> None:
        """Gather values from outside the region, for all calls."""
        for group, arrays in zip(self.region.groups, self.arrays, strict=True):
            for k, argument in enumerate(group.arguments):
                rows = arrays[f"X{k}"]
                whole = len(argument.ahead) == 1 and argument.ahead[0].targets is None
                if not whole:
                    rows[...] = 0
                for fetch in argument.ahead:
                    self._gather(fetch, rows)
                self.batch.launches += len(argument.ahead)
            for k, source in enumerate(group.constants, start=len(group.arguments)):
                arrays[f"X{k}"][...] = xs[source].flat

    def _bind_inputs(self, xs: Sequence[Ragged]) -> None:
        """The arrays behind the region's spaces."""
        self._values: list[Array] = []
        for space in self.region.spaces:
            if isinstance(space, Inner):
                cell = self.region.groups[space.group].cell
                columns = cell.exports[space.leaf]
                self._values.append(columns_of(self.packed[space.group], columns))
            else:
                self._values.append(space.of(xs[space.source]))

    def _gather(self, fetch: Fetch, out: Array) -> None:
        values = self._values[fetch.space]
        if fetch.targets is None:
            np.take(values, fetch.rows, axis=0, out=out, mode="clip")
        elif fetch.starts is None:
            out[fetch.targets] = values[fetch.rows]
        else:
            out[fetch.targets] += np.add.reduceat(values[fetch.rows], fetch.starts, axis=0)

    def _outputs(self, y: Array) -> None:
        for group, packed in zip(self.region.groups, self.packed, strict=True):
            cell = group.cell
            rows = group.results_in(y)
            for columns, first in zip(cell.exports, cell.columns, strict=True):
                rows[:, first : first + columns.width] = columns_of(packed, columns)
            self.batch.launches += len(cell.columns)

    # Backward -------------------------------------------------------------------------------------

    def backward(self, dy: Array, dxs: Sequence[Ragged | None]) -> None:
        """Run the batches in reverse; then the gradients of weights and outside values."""
        region, batch = self.region, self.batch
        xs = [batch.input(k) for k in range(len(batch.inputs))]
        for dx in dxs:
            if dx is not None:
                dx.values[...] = 0
        scratch = Scratch(batch.scratch)
        self._bind_inputs(xs)
        self._bind_gradients(dy, dxs)
        sinks = []
        for number, group in enumerate(region.groups):
            arrays = self.arrays[number]
            arrays.update(self._streams(group, scratch))
            sinks.append(self._prepare_backward(number, group, scratch))
            bind_memories(group, arrays, xs, dxs)
        self._gather_ahead(xs)
        loops = zip(self._loops, self.arrays, strict=True)
        run = [loop.bind_backward(arrays) for loop, arrays in loops]
        for t, step in reversed([*enumerate(region.batches)]):
            self._backward_batch(t, run[step.group])
        gradients = batch.parameter_gradients()
        for group, arrays, packed, sink in zip(
            region.groups, self.arrays, self.packed, sinks, strict=True
        ):
            for number in group.cell.generic:
                arrays[f"G{number}"].finish()
            sink.pass_on(gradients)
            stream_gradients(group.cell, arrays)
            weights = WeightGradients(group.cell, gradients)
            for number, op in group.cell.maps.items():
                if number in group.cell.of_maps:
                    dy = columns_of(arrays, group.cell.of_maps[number])
                    weights.add(op, _map_input(group, op, arrays, packed), dy)
            weights.run()
            batch.launches += len(group.cell.maps) + len(group.cell.stream_maps)
            self._gradients_ahead(group, arrays, dxs)

    def _bind_gradients(self, dy: Array, dxs: Sequence[Ragged | None]) -> None:
        """The gradients' arrays behind the region's spaces; None for unwanted ones."""
        self._of_groups = [group.results_in(dy) for group in self.region.groups]
        self._gradients: list[Array | None] = []
        for space in self.region.spaces:
            if isinstance(space, Inner):
                cell = self.region.groups[space.group].cell
                column = cell.columns[space.leaf]
                width = cell.program.exports[space.leaf].width
                self._gradients.append(self._of_groups[space.group][:, column : column + width])
                continue
            dx = dxs[space.source]
            self._gradients.append(None if dx is None else space.of(dx))

    def _prepare_backward(self, number: int, group: CallGroup, scratch: Scratch) -> ShardGradients:
        """The arrays of one group's backward, and where its generic operators' gradients go."""
        cell, arrays = group.cell, self.arrays[number]
        arrays.update(backward_weights(cell, scratch, self._native[number]))
        arrays["given"] = False
        arrays["dY"] = scratch.take(group.count, cell.width)
        for k, value in enumerate(cell.program.streams):
            arrays[f"dX{k}"] = scratch.take(group.count, value.width)
        for b in cell.packed_gradients:
            arrays[b.name] = in_planes(scratch.take(group.count, b.width), b)
        for b in cell.gradient_buffers:
            arrays[b.name] = temporary(self._most[number], b, scratch)
        sink = ShardGradients()
        for generic in cell.generic:
            arrays[f"G{generic}"].give_gradients_to(sink)
        return sink

    def _backward_batch(self, t: int, run: Callable[[Sequence[Block]], None]) -> None:
        step = self.region.batches[t]
        cell, arrays = self.region.groups[step.group].cell, self.arrays[step.group]
        first, end = step.first, step.end
        for k, fetch in step.fetches:
            self._gather(fetch, arrays[f"X{k}"][first:end])
        np.copyto(arrays["dY"][first:end], self._of_groups[step.group][first:end])
        run([(first, end, [(t, (first, end, end - first, -1))])])
        for k, fetch in step.fetches:
            if k in cell.backward_program.of_streams:
                self._give_back(fetch, arrays[f"dX{k}"][first:end])
        self.batch.launches += 2 * len(step.fetches) + 1
        self.batch.launches += cell.launches_backward + len(cell.numpy.factors)

    def _give_back(self, fetch: Fetch, rows: Array) -> None:
        """Add gradients of gathered rows to those of their sources."""
        gradient = self._gradients[fetch.space]
        if gradient is None:
            return
        if fetch.starts is not None:
            assert fetch.targets is not None
            counts = np.diff(fetch.starts, append=fetch.rows.size)
            rows = rows[np.repeat(fetch.targets, counts)]
        elif fetch.targets is not None:
            rows = rows[fetch.targets]
        add_rows_at(rows, fetch.rows, gradient, fetch.unique)

    def _gradients_ahead(
        self, group: CallGroup, arrays: Arrays, dxs: Sequence[Ragged | None]
    ) -> None:
        cell = group.cell
        for k, argument in enumerate(group.arguments):
            if k in cell.reached:
                for fetch in argument.ahead:
                    self._give_back(fetch, arrays[f"dX{k}"])
                self.batch.launches += len(argument.ahead)
        for k, source in enumerate(group.constants, start=len(group.arguments)):
            dx = dxs[source]
            if dx is not None and k in cell.reached:
                dx.flat[...] += arrays[f"dX{k}"].sum(axis=0)

    def gradients(self) -> list[tuple[Array, dict[int, Array]]]:
        """After backward, for each group: gradients of what its calls returned, side by side
        (count, width), and of what they were given, (count, width of it) by stream.
        """
        return [
            (rows, {k: arrays[f"dX{k}"] for k in group.cell.reached if k < len(group.arguments)})
            for rows, group, arrays in zip(
                self._of_groups, self.region.groups, self.arrays, strict=True
            )
        ]


def _map_input(group: CallGroup, op: Op, arrays: Arrays, packed: dict[str, Array]) -> Array:
    """All rows that a wide linear map multiplied."""
    (value,) = op.inputs
    if value.base.origin is Origin.STREAM:
        rows: Array = arrays[f"X{value.base.number}"]
        return rows[:, value.column : value.column + value.width]
    return columns_of(packed, group.cell.storage.columns_of(value))
