"""`ScanRun`: one batch of scans on its way, from packing in prefix layout to the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynbatch.cells.arrays import (
    Scratch,
    columns_of,
    in_planes,
    memory_rows,
    span_of,
    temporary,
)  # fmt: skip
from dynbatch.cells.compiled import CompiledCell
from dynbatch.cells.emit_forward import reads_state
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.gradients import ShardGradients
from dynbatch.cells.maps import WeightGradients, stream_gradients, weight_elements, weights_of
from dynbatch.cells.prefix import PrefixLayout, Shard
from dynbatch.cells.program import Op
from dynbatch.kernels import parallel
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged

# Sentences per shard below which a second thread does not pay: each packs the weights anew.
LEAST_SENTENCES = 4


class ScanRun:
    """One batch of scans: its prefix layout and arrays, forward and later backward."""

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        node = batch.first
        self.batch = batch
        self.cell: CompiledCell = node.cell
        self.lengths = np.asarray(y.lengths, np.int64)
        shards = min(parallel.available(), max(1, self.lengths.size // LEAST_SENTENCES))
        self.layout = PrefixLayout(self.lengths, y.offsets, node.reverse, shards)
        self.arrays: list[dict[str, Any]] = []
        self._given = node.given_states
        self._read(xs)

    def _read(self, xs: tuple[Ragged, ...]) -> None:
        streams = len(self.cell.program.streams)
        states = streams + sum(self._given)
        self.streams, self.inits, self.memories = (
            xs[:streams], list(xs[streams:states]), xs[states:],
        )  # fmt: skip

    @staticmethod
    def elements(batch: Batch, backward: bool) -> int:
        """Scratch elements that one pass needs."""
        cell: CompiledCell = batch.first.cell
        tokens: int = sum([node.length for node in batch.nodes])  # type: ignore[attr-defined]
        sentences = len(batch.nodes)
        states = sum([v.width for v in cell.program.states])
        streams = sum([v.width for v in cell.program.streams])
        total: int = tokens * streams + sentences * states + weight_elements(cell)
        if not backward:
            widths = [b.width for b in cell.storage.temporary]
            packed = 0 if batch.keeps else sum([b.width for b in cell.storage.packed])
            return total + sentences * sum(widths) + tokens * packed
        buffers = cell.reverse_pass.gradient_buffers()
        per_token: int = sum([b.width for b in buffers if b.packed]) + streams
        per_token += batch.first.width + states
        per_sentence = sum([b.width for b in buffers if not b.packed]) + states
        return total + tokens * per_token + sentences * per_sentence

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> None:
        """Run every shard, then bring outputs and last states into sentence order."""
        batch, cell, layout = self.batch, self.cell, self.layout
        scratch = Scratch(batch.scratch)
        tokens = layout.order.size
        packed = {}
        for b in cell.storage.packed:
            rows = batch.saved[b.name] if batch.keeps else scratch.take(tokens, b.width)
            packed[b.name] = in_planes(rows, b)
        self.packed = packed
        shared = weights_of(cell, scratch, transposed=True)
        streams = [scratch.take(tokens, v.width) for v in cell.program.streams]
        self.arrays = []
        for shard in layout.shards:
            arrays = dict(shared)
            for k, rows in enumerate(streams):
                arrays[f"X{k}"] = rows[shard.span]
            for name, rows in packed.items():
                arrays[name] = span_of(rows, shard)
            for b in cell.storage.temporary:
                arrays[b.name] = temporary(shard.sentences.size, b, scratch)
            self._initial_states(shard, arrays, scratch)
            self._generic_steps(shard, arrays)
            self.arrays.append(arrays)
        parallel.run([self._shard_task(shard, a) for shard, a in self._shards()])
        self._outputs(packed, y)
        self._count(cell.launches, cell.from_state, 2 * len(streams) + len(cell.stream_maps))

    def _shard_task(self, shard: Shard, arrays: dict[str, Any]) -> Callable[[], None]:
        def task() -> None:
            for k, x in enumerate(self.streams):
                self._take(x.values, self.layout.order[shard.span], arrays[f"X{k}"])
            self.cell.ahead_of_loop(arrays)
            self.cell.forward(arrays, shard.numbered)

        return task

    def _shards(self) -> list[tuple[Shard, dict[str, Any]]]:
        return list(zip(self.layout.shards, self.arrays, strict=True))

    def _take(self, rows: Array, index: Array, out: Array) -> None:
        np.take(rows, index, axis=0, out=out, mode="clip")

    def _initial_states(self, shard: Shard, arrays: dict[str, Any], scratch: Scratch) -> None:
        arrays["given"] = any(self._given)
        given = iter(self.inits)
        for k, state in enumerate(self.cell.program.states):
            rows = scratch.take(shard.sentences.size, state.width)
            if self._given[k]:
                self._take(next(given).values, shard.sentences, rows)
            else:
                rows[...] = 0
            arrays[f"I{k}"] = rows

    def _generic_steps(self, shard: Shard, arrays: dict[str, Any]) -> None:
        if not self.cell.generic:
            return
        memories = [self._sorted_memory(m, shard) for m in self.memories]
        for number, op in self.cell.generic.items():
            arrays[f"G{number}"] = GenericStep(
                op, memories, shard.sentences.size, self.batch.dtype, self.batch.keeps
            )

    def _sorted_memory(self, memory: Ragged, shard: Shard) -> Ragged:
        """A memory's rows in the shard's order of sentences."""
        index, lengths = memory_rows(memory, shard.sentences)
        return Ragged(memory.values[index], lengths.tolist())

    def _outputs(self, packed: dict[str, Array], y: Ragged) -> None:
        program, place = self.cell.program, self.cell.storage.place
        column = 0
        for value in program.exports:
            rows = columns_of(packed, *place(value), value.width)
            out = y.values[:, column : column + value.width]
            if out.flags.c_contiguous:
                self._take(rows, self.layout.inverse, out)
            else:
                out[...] = rows[self.layout.inverse]
            column += value.width
        given = iter(self.inits)
        for k, value in enumerate(program.following):
            rows = columns_of(packed, *place(value), value.width)
            out = self.batch.ports[k].values
            initial = next(given).values if self._given[k] else 0
            empty = self.layout.last < 0
            if rows.size:
                self._take(rows, self.layout.last, out)
            if empty.any() or not rows.size:
                out[empty] = initial[empty] if isinstance(initial, np.ndarray) else initial

    # Backward -------------------------------------------------------------------------------------

    def backward(self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> None:
        """Run every shard backwards; then weights, streams, initial states and memories."""
        cell, layout = self.cell, self.layout
        self._read(tuple([batch.input(k) for k in range(len(batch.inputs))]))
        scratch = Scratch(batch.scratch)
        tokens = layout.order.size
        shared: dict[str, Any] = dict(weights_of(cell, scratch, transposed=False))
        wide: dict[str, Array] = {"dY": scratch.take(tokens, dy.values.shape[1])}
        for k, value in enumerate(cell.program.streams):
            wide[f"X{k}"] = scratch.take(tokens, value.width)
            wide[f"dX{k}"] = scratch.take(tokens, value.width)
        for b in cell.reverse_pass.gradient_buffers():
            if b.packed:
                wide[b.name] = in_planes(scratch.take(tokens, b.width), b)
        gradients = batch.parameter_gradients()
        for shard, arrays in self._shards():
            self._initial_states(shard, arrays, scratch)
        for part in cell.reverse_pass.previous:
            self._previous_states(part, wide, scratch)
        for shard, arrays in self._shards():
            arrays.update(shared)
            arrays.update({name: span_of(rows, shard) for name, rows in wide.items()})
            for b in cell.reverse_pass.gradient_buffers():
                if not b.packed:
                    arrays[b.name] = temporary(shard.sentences.size, b, scratch)
            for k, value in enumerate(cell.program.states):
                carried = scratch.take(shard.sentences.size, value.width)
                self._take(batch.port_gradients[k].values, shard.sentences, carried)
                arrays[f"C{k}"] = carried
            self._prepare_memories(shard, arrays)
        sinks = [ShardGradients() for _ in layout.shards]
        for (_, arrays), sink in zip(self._shards(), sinks, strict=True):
            for number in cell.generic:
                arrays[f"G{number}"].give_gradients_to(sink)
        parallel.run([self._backward_task(dy, shard, a) for shard, a in self._shards()])
        for sink in sinks:
            sink.pass_on(gradients)
        self._weight_gradients(wide, scratch)
        self._input_gradients(wide, dxs)
        around = 1 + 2 * len(self.streams) + len(cell.stream_maps)
        self._count(cell.launches_backward, len(cell.reverse_pass.carry), around)
        blocks = sum([len(shard.blocks) for shard in layout.shards])
        batch.launches += blocks * len(cell.reverse_pass.ahead)
        batch.launches += len(cell.maps)

    def _backward_task(
        self, dy: Ragged, shard: Shard, arrays: dict[str, Any]
    ) -> Callable[[], None]:
        def task() -> None:
            order = self.layout.order[shard.span]
            self._take(dy.values, order, arrays["dY"])
            for k, x in enumerate(self.streams):
                self._take(x.values, order, arrays[f"X{k}"])
            self.cell.backward(arrays, shard.blocks)
            for number in self.cell.generic:
                arrays[f"G{number}"].finish()
            stream_gradients(self.cell, arrays)

        return task

    def _weight_gradients(self, wide: dict[str, Array], scratch: Scratch) -> None:
        """Gradients of all weights and biases; threads share the products."""
        gradients = WeightGradients(self.cell, self.batch.parameter_gradients())
        for number, op in self.cell.maps.items():
            name = self.cell.reverse_pass.of_maps.get(number)
            if name is not None:
                rows = self._map_input(op, wide, scratch)
                gradients.add(op, rows, wide[name], self._zero_rows(op))
        gradients.run()

    def _zero_rows(self, op: Op) -> int:
        """How many of the first rows that a wide linear map multiplied are known to be zeros."""
        shard = self.layout.shards[0]
        known = reads_state(op) and not any(self._given) and shard.steps
        return shard.steps[0][2] if known else 0

    def _map_input(self, op: Op, wide: dict[str, Array], scratch: Scratch) -> Array:
        """All rows that a wide linear map multiplied, packed."""
        (value,) = op.inputs
        base = value.base
        columns = slice(value.column, value.column + value.width)
        if base.origin == "stream":
            return wide[f"X{base.place}"][:, columns]
        if base.origin == "op":
            return columns_of(self.packed, *self.cell.storage.place(value), value.width)
        return self._previous_states(base.place, wide, scratch)[:, columns]

    def _previous_states(self, part: int, wide: dict[str, Array], scratch: Scratch) -> Array:
        """A part of the state as every step found it, packed; made once."""
        known = wide.get(f"H{part}")
        if known is not None:
            return known
        following = self.cell.program.following[part]
        rows = scratch.take(self.layout.order.size, following.width)
        source = columns_of(self.packed, *self.cell.storage.place(following), following.width)
        if rows.size:
            self._take(source, self.layout.previous, rows)
        for shard, arrays in self._shards():
            running = shard.steps[0][2] if shard.steps else 0
            first = slice(shard.start, shard.start + running)
            rows[first] = arrays[f"I{part}"][:running]
        wide[f"H{part}"] = rows
        return rows

    def _input_gradients(self, wide: dict[str, Array], dxs: tuple[Ragged | None, ...]) -> None:
        for k in range(len(self.streams)):
            dx = dxs[k]
            if dx is not None and k in self.cell.reached:
                self._take(wide[f"dX{k}"], self.layout.inverse, dx.values)
            elif dx is not None:
                dx.values[...] = 0
        position = len(self.streams)
        for k in range(len(self.cell.program.states)):
            if not self._given[k]:
                continue
            dx = dxs[position]
            position += 1
            if dx is not None:
                for shard, arrays in self._shards():
                    dx.values[shard.sentences] = arrays[f"C{k}"]
        for place, memory in enumerate(self.memories):
            dx = dxs[position + place]
            if dx is not None:
                for shard, arrays in self._shards():
                    index, _ = memory_rows(memory, shard.sentences)
                    dx.values[index] = arrays["memory gradients"][place].values

    def _prepare_memories(self, shard: Shard, arrays: dict[str, Any]) -> None:
        if not self.cell.generic:
            return
        gathered = []
        for memory in self.memories:
            index, lengths = memory_rows(memory, shard.sentences)
            zeros = np.zeros((index.size, memory.values.shape[1]), memory.values.dtype)
            gathered.append(Ragged(zeros, lengths.tolist()))
        arrays["memory gradients"] = gathered
        for number in self.cell.generic:
            arrays[f"G{number}"].memory_gradients = gathered

    def _count(self, a_step: int, of_state: int, around: int) -> None:
        """Kernels of one pass: those of the loop, and those around it in each shard.

        Args:
            of_state: those of a step that are left out where the state is zeros.
        """
        shards = self.layout.shards
        steps = sum([len(shard.steps) for shard in shards])
        zeros = 0 if any(self._given) else sum([len(shard.steps) > 0 for shard in shards])
        self.batch.launches += steps * a_step - zeros * of_state + len(shards) * around
