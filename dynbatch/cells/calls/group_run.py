"""`GroupRun`: the loop of one group of a region's calls; `HostGroupRun` on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.region import CallRegion, PackedRows
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.linear_maps import WeightGradients, stream_gradients, write_products
from dynbatch.cells.loop_arrays import LoopArrays, left_rooms, loop_rooms
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, Rooms, Scratch, columns_of
from dynbatch.compiler.c.loop_text import ORDER, OUTPUTS
from dynbatch.kernels.batches import ROWS, BoundBatches, GatherTables
from dynbatch.kernels.gathers import BoundTable, gather, give_back
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import Tasks
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

T = TypeVar("T")


class GroupRun:
    """The loop of one group, on any device.

    Attributes:
        arrays:  by name, as generated code wants them.
        views:   the streams whose rows are read where they lie.
        at_once: whether what is known ahead is gathered when its batch runs.
        results: in backward, gradients of what the calls returned, (count, width).
    """

    at_once = False
    views: Mapping[int, slice] = {}
    results: Array

    def __init__(self, region: CallRegion, number: int, batch: Batch) -> None:
        self.group = region.groups[number]
        self.cell = self.group.cell
        self._region = region
        self._number = number
        self._most = region.most(number)
        self._batch = batch
        self.arrays: Arrays = {}

    def _take(self, scratch: Scratch, backward: bool) -> tuple[Arrays, Arrays]:
        """The arrays of a pass, and those that forward leaves for backward."""
        batch, saved = self._batch, self._batch.saved
        arrays = scratch.take_all(rooms_of(self._region, self._number, batch, backward))
        names = left_rooms(self.cell, batch.device, 0)
        return arrays, {
            name: arrays[name] if name in arrays else saved[f"{self._number}:{name}"]
            for name in names
        }

    def _memories(self, xs: Sequence[T]) -> list[T]:
        return [xs[source] for source in self.group.memories]

    def _chosen(self) -> Mapping[int, Array]:
        return self._region.chosen_memories(self._number) if self.group.memories else {}

    def export(self, leaf: int) -> Array:
        """(count, ·) value number `leaf` of the calls."""
        raise NotImplementedError

    def gathers(self, spaces: Sequence[Array], ahead: bool) -> list[BoundTable]:
        """Sums that make the streams which are known before the first batch, or the others.

        Args:
            spaces: the arrays behind those of the region.
        """
        streams = [k for k in range(len(self.group.streams)) if k not in self.views]
        return [
            self.bound("X", k, spaces)
            for k in streams
            if (self.group.streams[k].ahead and not self.at_once) is ahead
        ]

    def bound(self, letter: str, k: int, spaces: Sequence[Array | None]) -> BoundTable:
        """The table of a stream between its values (X) or gradients (dX) and those of spaces."""
        stream = self.group.streams[k]
        sources = [spaces[space] for space in stream.spaces]
        return BoundTable(self.arrays[f"{letter}{k}"], stream.table, sources)

    def outputs(self, y: Array) -> list[BoundTable]:
        """Sums of one term that write what the calls returned into the region's value."""
        leaves, results = range(len(self.cell.columns)), self.group.results
        return [BoundTable(results.values(y, k), None, [self.export(k)]) for k in leaves]

    def argument(self, stream: int) -> Array:
        rows: Array = self.arrays[f"X{stream}"]
        return rows

    def gradients(self) -> tuple[Array, dict[int, Array]]:
        """Gradients after backward: of the calls' results, side by side (count, width), and
        of what they were given, (count, width of it) by stream.
        """
        num_given = self.cell.program.num_given
        return self.results, {k: self.arrays[f"dX{k}"] for k in self.cell.reached if k < num_given}


def saved_of(region: CallRegion, number: int, batch: Batch) -> Rooms:
    """The arrays that forward of a group leaves for backward."""
    group = region.groups[number]
    return left_rooms(group.cell, batch.device, group.calls)


def rooms_of(region: CallRegion, number: int, batch: Batch, backward: bool) -> Rooms:
    """The arrays of a pass of a group; rows in the order of the calls are not among them."""
    group, most = region.groups[number], region.most(number)
    views = {} if batch.device.is_cuda else group.views
    elsewhere = [*[f"X{k}" for k in views], "dY"]
    rooms = loop_rooms(group.cell, batch, group.calls, most, backward, elsewhere)
    return rooms if batch.keeps or backward else rooms | saved_of(region, number, batch)


class HostGroupRun(GroupRun):
    """The loop of one group on the CPU.

    Attributes:
        is_in_c: whether batches run in C, gathers and all.
        at_once: whether all calls are one batch in C, so that what is known ahead is gathered in it
            too, and its maps are made there, while their rows lie in the cache.
        written: in backward, the streams whose gradients are written where those of the inputs lie,
            as nothing else reads these, with the numbers of the inputs.
    """

    def __init__(self, region: CallRegion, number: int, batch: Batch) -> None:
        super().__init__(region, number, batch)
        self.views = self.group.views
        self._native = self.cell.in_c.functions(batch.dtype)
        self._loop = self._native or self.cell.numpy
        self.is_in_c = self._native is not None and not self.cell.generic
        self.at_once = self.is_in_c and region.is_at_once(number)
        self.written: dict[int, int] = {}
        self._returns_ahead: list[BoundTable] = []
        self._returns: list[BoundTable] = []
        self._generic: dict[str, GenericStep] = {}

    def begin(self, scratch: Scratch, work: Tasks, y: Array, xs: Sequence[Ragged]) -> None:
        memories, chosen, batch = self._memories(xs), self._chosen(), self._batch
        for number, op in self.cell.generic.items():
            self._generic[f"G{number}"] = GenericStep(
                op, memories, self._most, batch.dtype, batch.keeps, chosen=chosen
            )
        self._take_arrays(scratch, work, xs, backward=False)
        self.arrays[OUTPUTS] = self.group.results.of(y)
        self._batch.launches += len(self.cell.stream_maps)

    def begin_backward(
        self, scratch: Scratch, work: Tasks, dy: Array, xs: Sequence[Ragged],
        dxs: Sequence[Ragged | None],
    ) -> None:  # fmt: skip
        """Set the arrays of backward, and where generic operators' gradients go."""
        self.results, self._sink = self.group.results.of(dy), ShardGradients()
        memories = self._memories(xs)
        gradients = [
            memory.like(np.zeros_like(memory.values)) if dx is None else dx
            for memory, dx in zip(memories, self._memories(dxs), strict=True)
        ]
        for step in self._generic.values():
            step.give_gradients_to(self._sink)
            step.memories, step.memory_gradients = memories, gradients
        self._take_arrays(scratch, work, xs, backward=True)
        self.arrays["dY"] = self.results
        for k in self.group.views:
            source = self._input_of(k).source
            dx = dxs[source]
            if dx is None or k not in self.cell.reached or source not in self._region.read_once():
                continue
            rows = self._view(k, dxs)
            if rows.size == dx.values.size:
                self.arrays[f"dX{k}"] = rows
                self.written[k] = source

    def _take_arrays(
        self, scratch: Scratch, tasks: Tasks, xs: Sequence[Ragged], backward: bool
    ) -> None:
        rows, count = slice(0, self.group.calls), self.group.calls
        taken, kept = self._take(scratch, backward)
        arrays = LoopArrays(self.cell, taken, [self._most], tasks, kept, backward)
        self.arrays = arrays.of_shard(0, arrays.of_all(count), rows, rows)
        self.arrays |= {f"X{k}": self._view(k, xs) for k in self.group.views}
        self.arrays |= self._generic | {"given": False, ORDER: np.arange(count)}

    def _input_of(self, stream: int) -> PackedRows:
        space = self._region.spaces[self.group.streams[stream].spaces[0]]
        assert isinstance(space, PackedRows)
        return space

    def _view(self, stream: int, inputs: Sequence[Any]) -> Array:
        space = self._input_of(stream)
        return space.of(inputs[space.source])[self.group.views[stream]]

    # Around the batches ---------------------------------------------------------------------------

    def bind(
        self, way: int, gathers: list[BoundTable], gradients: Sequence[Array | None] = ()
    ) -> None:
        """Set what the batches of forward (0) or backward (1) gather, and what they give back to.

        Args:
            gradients: of the region's spaces.
        """
        self._gathers = gathers
        if way:
            streams = sorted(self.cell.reached.keys() - self.written)
            returns = [(self.group.streams[k], self.bound("dX", k, gradients)) for k in streams]
            self._returns_ahead = [table for stream, table in returns if stream.ahead]
            self._returns = [table for stream, table in returns if not stream.ahead]
        if not self.is_in_c:
            self._run = self._loop.bind(way, self.arrays)

    def maps_ahead(self, work: Tasks) -> None:
        """Make the maps of what is known before the first batch, for all calls at once."""
        if not self.cell.stream_maps or self.at_once:
            return
        if self._native is None:
            work.then([partial(self.cell.numpy.ahead, self.arrays)])
            return
        steps = [[(*span, 0, -1)] for span in parallel.shards(self.group.calls, ROWS)]
        work.then(*[[self._native.steps(0, self.arrays, each)] for each in steps])

    def export(self, leaf: int) -> Array:
        return columns_of(self.arrays, self.cell.exports[leaf])

    def outputs(self, y: Array) -> list[BoundTable]:
        if self._native is None:
            return super().outputs(y)
        self._batch.launches += len(self.cell.columns)
        return []  # C does so in its batches

    def finish(self, work: Tasks) -> None:
        """Write down the gradients of weights, and of what was known ahead."""
        cell, arrays, count = self.cell, self.arrays, self.group.calls
        gradients = self._batch.parameter_gradients()
        if self._generic:
            work.then([step.finish for step in self._generic.values()])
            work.at_last(partial(self._sink.pass_on, gradients))
        outs, spans = {k: arrays[f"dX{k}"] for k in cell.reached}, parallel.shards(count, ROWS)
        work.then(*[stream_gradients(cell, arrays, outs, None, span) for span in spans])
        weights = WeightGradients(cell, gradients, partial(write_products, work))
        for numbers in cell.map_groups:
            xs = [columns_of(arrays, cell.map_inputs[number]) for number in numbers]
            weights.add(numbers, xs, columns_of(arrays, cell.of_maps[numbers[0]]))
        work.at_last(weights.finish)
        for dx, table, sources, _ in self._returns_ahead:
            work.call(partial(give_back, dx, table, 0, count, sources))
        around = len(cell.stream_maps) + len(self._returns_ahead)
        self._batch.launches += len(cell.maps) + around

    # Batches --------------------------------------------------------------------------------------

    def batch(self, t: int, first: int, end: int) -> None:
        """Run batch t, rows first … end - 1, forward or backward."""
        for into, table, sources, _ in self._gathers:
            gather(sources, table, first, end, into)
        self._run([(t, (first, end, end - first, -1))])
        for dx, table, gradients, _ in self._returns:
            give_back(dx, table, first, end, gradients)

    def in_c(self, way: int) -> BoundBatches:
        assert self._native is not None
        run, product, places = 0, 0, []
        for arrays in self._of_threads(way):
            run, each, product = self._native.entry(way, arrays)
            places.append(each)
        elements = sum([p.size for p in self.cell.parameters])
        tables = GatherTables(self._gathers), GatherTables(self._returns)
        ahead = self.at_once and not way
        return BoundBatches(run, np.stack(places), product, *tables, elements, ahead)

    def _of_threads(self, way: int) -> Iterator[Arrays]:
        """The arrays of each thread that may run a part of a batch: temporary values are its own.

        There are as many as the room for the largest batch holds.
        """
        buffers = self.cell.gradients.temporary if way else self.cell.storage.temporary
        for k in range(max(1, min(parallel.available(), self._most // ROWS))):
            temporary = {b.name: self.arrays[b.name][k * ROWS :] for b in buffers}
            yield self.arrays | temporary

    def launches(self, way: int) -> int:
        launches = self.cell.launches_backward if way else self.cell.launches
        return len(self._gathers) + len(self._returns) + launches
