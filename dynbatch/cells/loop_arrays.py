"""The arrays of a loop in one pass, by the names that generated code uses, and their sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dynbatch.backend import Array, Device
from dynbatch.cells.cuda.linear_maps import wide_rooms
from dynbatch.cells.linear_maps import packed_weights, weight_rooms
from dynbatch.compiler.arrays import Arrays, Rooms, Scratch
from dynbatch.compiler.buffers import ProgramBuffer
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.kernels.runtime.tasks import Tasks
from dynbatch.nodes.batch import Batch

OF_STEPS = "temporary"


def loop_of(cell: CompiledLoop, device: Device) -> CompiledLoop | Loop:
    """The loop as a device runs it."""
    return cell.on_device.loop if device.is_cuda else cell


def left_rooms(
    cell: CompiledLoop, device: Device, rows: int, states: Rooms | None = None
) -> Rooms:  # fmt: skip
    """The values that forward leaves for backward, and on a GPU the weights that it gathered.

    Args:
        states: what it leaves instead of all values.
    """
    loop = loop_of(cell, device)
    rooms = {b.name: (rows, b.width) for b in loop.storage.packed} if states is None else states
    return rooms | (wide_rooms(loop) if isinstance(loop, Loop) else {})


def loop_rooms(
    cell: CompiledLoop, batch: Batch, rows: int, running: int, backward: bool,
    elsewhere: Collection[str] = (),
) -> Rooms:  # fmt: skip
    """The arrays of a loop in one pass; on a GPU without weights, which forward leaves.

    Args:
        rows, running: rows of all shards, of a scan those of its largest chunk; and of all shards'
            largest steps.
        elsewhere: names of arrays that lie elsewhere.
    """
    rooms: Rooms = {}
    loop, recomputes = loop_of(cell, batch.device), batch.recompute > 0
    for way in _ways(backward, recomputes) if loop is cell else ():
        rooms |= weight_rooms(cell, way, not (backward or recomputes), batch.dtype)
    wide = [*cell.stream_rows, *([*cell.backward_rows, *loop.gradients.packed] * backward)]
    if recomputes or not (batch.keeps or backward):
        wide += loop.storage.packed
    rooms |= {b.name: (rows, b.width) for b in wide if b.name not in elsewhere}
    temporary = _temporary(loop, backward, recomputes)
    if loop is cell:  # the passes of a step follow one another
        return rooms | {OF_STEPS: (running, max(map(_width, temporary)))}
    return rooms | {b.name: (running, b.width) for each in temporary for b in each}


def _ways(backward: bool, recomputes: bool) -> list[int]:
    return [*([0] if recomputes or not backward else []), *([1] if backward else [])]


def _temporary(
    loop: CompiledLoop | Loop, backward: bool, recomputes: bool
) -> list[Sequence[ProgramBuffer]]:
    passes = (loop.temporary, loop.temporary_gradients)
    return [passes[way] for way in _ways(backward, recomputes)]


class LoopArrays:
    """Arrays by name: rows of all tokens or calls, cut for each shard; and rows of its steps.

    Attributes:
        kept: arrays with the rows of all chunks.

    Args:
        rooms:   the arrays of `loop_rooms`, among others.
        running: of each shard, the rows of its largest step.
        tasks:   where packing of weights is written down.
        saved:   what forward makes for backward, (N, width) by name; None if it has no rows that
            are kept from one pass to the other.
        backward, recomputes: which pass it is, and whether backward runs forward again.
    """

    def __init__(
        self, cell: CompiledLoop, rooms: Arrays, running: Sequence[int], tasks: Tasks,
        saved: Mapping[str, Array] | None, backward: bool, recomputes: bool = False,
    ) -> None:  # fmt: skip
        self._shared: Arrays = {}
        for way in _ways(backward, recomputes):
            self._shared |= packed_weights(cell, way, rooms, tasks)
        wide = [*cell.stream_rows, *cell.backward_rows]
        wide += [*cell.gradients.packed, *cell.storage.packed]
        self._wide = {b.name: rooms[b.name] for b in wide if b.name in rooms}
        self.kept = {} if saved is None else {b.name: saved[b.name] for b in cell.storage.packed}
        self._of_steps: list[Arrays] = []
        groups, all_steps, first = _temporary(cell, backward, recomputes), rooms[OF_STEPS], 0
        for count in running:
            room = all_steps[first : first + count].reshape(-1)
            first += count
            self._of_steps.append({})
            for buffers in groups:  # the passes of a step follow one another
                sizes = {b.name: (count, b.width) for b in buffers}
                self._of_steps[-1] |= Scratch(room).take_all(sizes)

    def of_all(self, count: int) -> Arrays:
        return self.kept | {name: rows[:count] for name, rows in self._wide.items()}

    def of_shard(self, number: int, wide: Arrays, span: slice, kept: slice) -> Arrays:
        """Everything that generated code reads, for one shard.

        Args:
            span, kept: its rows of the packed arrays, and of those that are kept.
        """
        return (
            self._of_steps[number]
            | self._shared
            | {name: wide[name][span] for name in self._wide}
            | {name: array[kept] for name, array in self.kept.items()}
        )


def _width(buffers: Iterable[ProgramBuffer]) -> int:
    return sum([buffer.width for buffer in buffers])
