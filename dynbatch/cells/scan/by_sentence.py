"""`SentenceRun`: runs a batch of scans sentence by sentence, where states are matrices.

Each shard's pass is one task in C (see `compiler.c.by_sentence`). With `batch.recompute` forward
leaves each sentence's state once in so many steps, and backward makes what is between again, both
passes at once; else forward leaves all that backward reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cells.linear_maps import (
    WeightGradients,
    packed_weights,
    stream_gradients,
    write_products,
)
from dynbatch.cells.scan.run import (
    ScanRun,
    lengths_of,
    most_threads,
    of_shard,
    sorted_inputs,
    states_left,
    take_streams,
)
from dynbatch.compiler.arrays import Arrays, Rooms, Scratch, columns_of, elements_of
from dynbatch.compiler.buffers import Role, array_name
from dynbatch.compiler.c.by_sentence import table
from dynbatch.compiler.c.loop_text import ORDER, OUTPUT_GRADIENTS, OUTPUTS, rows_of_stream
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.kernels.runtime.tasks import Task, Tasks
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

# Rows that steps take turns with where nothing reads them later: a step finds what the last left.
IN_TURN = 2


class SentenceRun(ScanRun):
    """One batch of scans whose steps run sentence by sentence, in C.

    Attributes:
        at_once: the number of shards that the pass runs at once, each in rooms of its own; others
            follow in the same ones, where a pass was planned when there were fewer threads.
    """

    at_once: int

    @staticmethod
    def runs(cell: CompiledCell, dtype: DType) -> bool:
        """Whether scans of a cell run so."""
        return cell.program.is_by_sentence and cell.in_c.functions(dtype) is not None

    def threads(self, sentences: int) -> int:
        """The number of shards that the plan has room for."""
        return self._planned(False, most_threads(sentences))

    def take(self, backward: bool) -> Arrays:
        self.at_once = self._planned(backward, len(self.shards))
        rooms = _rooms(self.batch, backward, self.at_once)
        return Scratch(self.batch.scratch).take_all(rooms)

    def _planned(self, backward: bool, most: int) -> int:
        """The number of shards that a pass has room for at once, of so many at most."""
        needs = [elements_of(_rooms(self.batch, backward, count)) for count in range(1, most + 1)]
        return max(1, sum([need <= self.batch.scratch.size for need in needs]))

    def forward(self, y: Ragged) -> Tasks:
        tasks, rooms, native = Tasks(), self.take(backward=False), self.native
        assert native is not None
        states, rows = self.in_order(self.inits, rooms, "I"), _rows_in_turn(self.batch, False)
        chunk = self.batch.recompute if self.batch.keeps else 0
        parts, first = [], 0
        for number, shard in enumerate(self.shards):
            arrays = self._of_shard(number, rooms, states, rows) | {OUTPUTS: y.values}
            steps = table(shard.order, shard.steps, chunk, rows, first)
            first += states_between(shard.lengths, chunk)
            parts.append([*self._ahead(arrays, True), native.steps(0, arrays, steps)])
        tasks.then(*parts)
        tasks.at_last(lambda: self.put(states, self.batch.ports))
        self.count_forward(1)
        return tasks

    def backward(self, batch: Batch, dy: Ragged, dxs: Sequence[Ragged | None]) -> Tasks:
        """Write down backward: gradients of streams, weights and initial states."""
        self.read_again()
        tasks, rooms, cell, native = Tasks(), self.take(backward=True), self.cell, self.native
        assert native is not None
        of_streams, of_inits, _ = sorted_inputs(batch, dxs)
        states = self.in_order(self.inits, rooms, "I")
        carried = self.in_order(batch.port_gradients, rooms, "C")
        wanted = self.wanted(of_streams)
        chunk, rows = batch.recompute, _rows_in_turn(batch, True)
        nowhere = {f"dX{k}": rooms[f"dX{k}"] for k in cell.backward_program.of_streams}
        parts: list[list[Task]] = [[] for _ in range(self.at_once)]
        first = 0
        for number, shard in enumerate(self.shards):
            arrays, turn = self._of_shard(number, rooms, states, rows), number % self.at_once
            arrays |= {f"C{k}": rows for k, rows in enumerate(of_shard(carried, shard))}
            arrays |= {"dY": rooms["dY"][turn:], OUTPUT_GRADIENTS: dy.values}
            for name, each in nowhere.items():
                arrays[name] = np.broadcast_to(each[turn], (len(dy.values), each.shape[1]))
            arrays |= {f"dX{k}": dx for k, dx in wanted.items()}
            steps = table(shard.order, shard.steps, chunk, chunk, first, again=chunk > 0)
            first += states_between(shard.lengths, chunk)
            span = (0, shard.rows)
            parts[turn] += [
                *self._ahead(arrays, rows > 0),
                native.again(arrays, steps) if chunk else native.steps(1, arrays, steps),
                *stream_gradients(cell, arrays, wanted, shard.order, span),
            ]
        tasks.then(*parts)
        weights = WeightGradients(cell, batch.parameter_gradients(), partial(write_products, tasks))
        for group in cell.map_groups:
            xs = [columns_of(rooms | batch.saved, cell.map_inputs[number]) for number in group]
            weights.add(group, xs, columns_of(rooms, cell.of_maps[group[0]]))
        tasks.at_last(weights.finish)
        tasks.at_last(partial(self.put, carried, of_inits))
        self.count_backward(1)
        return tasks

    # Arrays ---------------------------------------------------------------------------------------

    def _of_shard(self, number: int, rooms: Arrays, states: list[Array], rows: int) -> Arrays:
        """Everything that generated code reads of a shard, by name.

        Args:
            rows: that its steps take turns with; 0 where each has its own, which are kept.
        """
        cell, shard, turn = self.cell, self.shards[number], number % self.at_once
        span = shard.span
        saved = {} if rows else {name: array[span] for name, array in self.batch.saved.items()}
        arrays: Arrays = packed_weights(cell, 0, rooms, Tasks()) | self.batch.saved | saved
        in_turn = {b.name for b in cell.storage.packed if not cell.storage.is_ahead(b)}
        of_steps = {b.name for b in (*cell.storage.temporary, *cell.gradients.temporary)}
        for name, room in rooms.items():
            if name in in_turn:
                arrays[name] = room[turn * rows : (turn + 1) * rows]
            elif name not in arrays:
                arrays[name] = room[turn:] if name in of_steps else room[span]
        arrays |= {f"I{k}": part for k, part in enumerate(of_shard(states, shard))}
        arrays |= {rows_of_stream(k): x.values for k, x in enumerate(self.streams)}
        return arrays | {ORDER: shard.order}

    def _ahead(self, arrays: Arrays, makes_maps: bool) -> list[Task]:
        """Tasks that bring streams into the loop's order, and multiply them."""
        if not self.cell.stream_maps:
            return []
        maps: list[Task] = [partial(self.cell.numpy.ahead, arrays)]
        return [partial(take_streams, arrays, _mapped(self.cell)), *maps * makes_maps]

    # Sizes ----------------------------------------------------------------------------------------

    @staticmethod
    def saved(batch: Batch) -> Rooms:
        if not batch.recompute:
            return ScanRun.saved(batch)
        return states_left(batch, states_between(lengths_of(batch), batch.recompute))

    @staticmethod
    def rooms(batch: Batch, backward: bool) -> Rooms:
        return _rooms(batch, backward, most_threads(len(batch.nodes)))


def states_between(lengths: Array, chunk: int) -> int:
    """The states that are left of sentences: one after every `chunk` steps but the last ones."""
    return int(np.maximum(0, -(-lengths // chunk) - 1).sum()) if chunk else 0


def _rows_in_turn(batch: Batch, backward: bool) -> int:
    """The rows of each shard that steps take turns with; 0 where what they make is kept."""
    if batch.recompute and backward:
        return min(batch.recompute, int(lengths_of(batch).max(initial=1)))
    return IN_TURN if batch.recompute or not (batch.keeps or backward) else 0


def _mapped(cell: CompiledCell) -> list[int]:
    """The streams that are multiplied ahead of the loop."""
    return sorted({op.inputs[0].number for op in cell.stream_maps.values()})


def _rooms(batch: Batch, backward: bool, threads: int) -> Rooms:
    """The arrays of a pass for so many shards: see `ScanRun.rooms`."""
    cell: CompiledCell = batch.first.cell
    assert cell.in_c.by_sentence is not None
    heads, program = cell.in_c.by_sentence.heads.count, cell.program
    rows, in_turn = int(lengths_of(batch).sum()), _rows_in_turn(batch, backward)
    rooms = {array_name(Role.STREAM, k): (rows, program.streams[k].width) for k in _mapped(cell)}
    for b in cell.storage.packed if in_turn else ():
        is_ahead = cell.storage.is_ahead(b)
        rooms[b.name] = (rows, b.width) if is_ahead else (threads * in_turn, b.width // heads)
    temporary = [] if backward and not in_turn else cell.storage.temporary
    temporary = [*temporary, *cell.gradients.temporary] if backward else temporary
    rooms |= {b.name: (threads, b.width // heads) for b in temporary}
    if backward:
        rooms["dY"] = threads, program.width // heads
        for k, value in cell.backward_program.of_streams.items():
            rooms[f"dX{k}"] = threads, value.width
        rooms |= {b.name: (rows, b.width) for b in cell.gradients.packed}
    for letter in "IC" if backward else "I":
        for k, state in enumerate(program.states):
            rooms[f"{letter}{k}"] = len(batch.nodes), state.width
    return rooms
