"""`DeviceScanRun`: one batch of scans on a GPU, from packing in prefix layout to the gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dynbatch.cells.arrays import Scratch, memory_rows
from dynbatch.cells.cuda import tail as tails
from dynbatch.cells.cuda.cell import DeviceCell
from dynbatch.cells.cuda.emit import THREADS, Kernel
from dynbatch.cells.cuda.lanes import Group
from dynbatch.cells.cuda.matrix import Matrix, matrix_of
from dynbatch.cells.cuda.weights import bias_gradients, weight_gradients, wide_bias, wide_weight
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.gradients import ParameterRows, ShardGradients
from dynbatch.cells.prefix import PrefixLayout
from dynbatch.cells.program import Op, Value
from dynbatch.kernels import arrays as plain
from dynbatch.kernels.cuda.queue import Repeated, queue
from dynbatch.kernels.cuda.scan import move_columns, pick_rows
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class DeviceScanRun:
    """One batch of scans: its prefix layout and matrices, forward and later backward."""

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        node = batch.first
        self.batch = batch
        self.cell: DeviceCell = node.cell.on_device
        self.lengths = np.asarray(y.lengths, np.int64)
        self.layout = PrefixLayout(self.lengths, y.offsets, node.reverse, 1)
        (self.shard,) = self.layout.shards
        self._given: tuple[bool, ...] = node.given_states
        self._queue = queue()
        self._size = batch.dtype.itemsize
        self._queue.kernels(batch.dtype).add(self.cell.source)
        steps = [(s, n, p) for s, _, n, p in self.shard.steps]
        self._steps = np.array(steps, np.int32).reshape(-1, 3)
        self._read(xs)

    def _read(self, xs: tuple[Ragged, ...]) -> None:
        streams = len(self.cell.program.streams)
        states = streams + sum(self._given)
        self.streams, inits, self.memories = xs[:streams], iter(xs[streams:states]), xs[states:]
        self.inits = [next(inits) if given else None for given in self._given]

    @staticmethod
    def elements(batch: Batch, backward: bool) -> int:
        """Scratch elements that one pass needs."""
        cell: DeviceCell = batch.first.cell.on_device
        program = cell.program
        tokens: int = sum([node.length for node in batch.nodes])  # type: ignore[attr-defined]
        sentences = len(batch.nodes)
        states = sum([v.width for v in program.states])
        streams = sum([v.width for v in program.streams])
        maps = [op for op in [*program.stream_maps, *program.ops] if op.kind == "linear"]
        weights: int = sum([p.width * (op.inputs[0].width + 1) for op in maps for p in op.pieces])
        total = tokens * streams + sentences * states + weights
        if not backward:
            temporary = sum([b.width for b in cell.places.temporary])
            packed = 0 if batch.keeps else sum([b.width for b in cell.places.packed])
            return total + sentences * temporary + tokens * packed
        buffers = [g.buffer for g in cell.gradients.values() if g.buffer.name[0] == "D"]
        per_token: int = sum([b.width for b in buffers if b.packed]) + streams + cell.width + states
        per_sentence = sum([b.width for b in buffers if not b.packed]) + 2 * states
        return total + tokens * per_token + sentences * per_sentence

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> None:
        """Run every step, then bring outputs and last states into sentence order."""
        batch, cell = self.batch, self.cell
        self._cublas = self._queue.cublas(batch.dtype)
        tokens, sentences = self.layout.order.size, self.shard.sentences.size
        scratch = Scratch(batch.scratch)
        self.matrices: dict[str, Matrix | None] = {}
        for b in cell.places.packed:
            rows = batch.saved[b.name] if batch.keeps else scratch.take(tokens, b.width)
            self.matrices[b.name] = matrix_of(rows)
        for b in cell.places.temporary:
            self.matrices[b.name] = matrix_of(scratch.take(sentences, b.width))
        self._start(scratch)
        for op in cell.program.stream_maps:
            self._map(op, self._whole(op.inputs[0]), self._whole(op.output), tokens)
        self._generic = {
            id(op): GenericStep(
                op, self._sorted_memories(), sentences, batch.dtype, batch.keeps, batch.xp
            )
            for op in cell.program.ops
            if op.kind == "generic"
        }
        kernels = {number: self._repeated(pair.forward) for number, pair in cell.kernels.items()}
        first = self._first_of_tail()
        for t, (_, _, n, p) in enumerate(self.shard.steps[:first]):
            for number, item in enumerate(cell.items):
                if isinstance(item, Group):
                    width = cell.kernels[number].forward.width
                    kernels[number].launch(-(-n * width // THREADS), THREADS, t)
                elif item.kind == "generic":
                    xs = [self._argument(x, t) for x in item.inputs]
                    with self._in_turn(item):
                        self._generic[id(item)].forward(t, n, self._rows(item.output, t), *xs)
                elif not (p < 0 and cell.skips_zeros(item) and not self._has_initial(item)):
                    out = self._part(item.output, t)
                    assert out is not None
                    self._map(item, self._part(item.inputs[0], t), out, n)
        if cell.tail is not None:
            self._launch_tail(f"{cell.name}_tail", cell.tail.arrays, first)
        self._outputs(y)

    def _first_of_tail(self) -> int:
        """The step from which on one launch does the rest; the number of steps without a tail."""
        tail, steps = self.cell.tail, self.shard.steps
        if tail is None or tail.elements * self._size > tails.TAIL_BYTES:
            return len(steps)
        return sum([n > tails.TAIL_ROWS for _, _, n, _ in steps])

    def _launch_tail(self, name: str, arrays: list[str], first: int) -> None:
        steps = self.shard.steps
        if first == len(steps):
            return
        found = [self.matrices[array] for array in arrays]
        addresses = [None if matrix is None else matrix.address for matrix in found]
        args = [*addresses, self._steps, first, len(steps)]
        self._queue.launch(self.batch.dtype, name, (steps[first][2],), (tails.THREADS,), args)

    def _in_turn(self, op: Op) -> AbstractContextManager[None]:
        """Where a node type of the user's computes with CuPy, all before it is started first."""
        return nullcontext() if type(op.node).names_kernels else self._queue.at_once()

    def _start(self, scratch: Scratch) -> None:
        """Streams in prefix order, initial states, weights: the same for both passes."""
        cell, tokens = self.cell, self.layout.order.size
        for k, (stream, value) in enumerate(zip(self.streams, cell.program.streams, strict=True)):
            rows = self.matrices[f"X{k}"] = matrix_of(scratch.take(tokens, value.width))
            self._pick(matrix_of(stream.values), None, self.layout.order, rows)
        for k, (init, state) in enumerate(zip(self.inits, cell.program.states, strict=True)):
            self.matrices[f"I{k}"] = None
            if init is not None:
                rows = matrix_of(scratch.take(len(self.lengths), state.width))
                self._pick(matrix_of(init.values), None, self.shard.sentences, rows)
                self.matrices[f"I{k}"] = rows
            buffer, _ = cell.places.place(cell.following[k])
            self.matrices[f"S{k}"] = self.matrices[buffer.name]
        for op in [*cell.program.stream_maps, *cell.program.ops]:
            if op.kind == "linear":
                number = cell.maps[id(op)]
                self.matrices[f"V{number}"] = wide_weight(self._queue, op, scratch)
                self.matrices[f"b{number}"] = wide_bias(self._queue, op, scratch)

    def _repeated(self, kernel: Kernel, turn: int = 0) -> Repeated:
        """A kernel with its matrices; `turn` says which of two holds the carried gradients."""
        addresses = []
        for name in kernel.arrays:
            if name[0] in "CN":
                name = f"C{name[1:]}_{turn if name[0] == 'C' else 1 - turn}"
            found = self.matrices[name]
            addresses.append(None if found is None else found.address)
        return self._queue.repeated(self.batch.dtype, kernel.name, [*addresses, self._steps])

    def _map(self, op: Op, x: Matrix | None, out: Matrix, rows: int) -> None:
        """A linear map of some rows; of None, which stands for zeros, it is zeros."""
        number = self.cell.maps[id(op)]
        weight, bias = self._matrix(f"V{number}"), self.matrices[f"b{number}"]
        if x is None:
            plain.fill(out.view(rows, op.output.width), 0)
        else:
            self._cublas.gemm(
                False, True, rows, op.output.width, weight.width,
                x.address, x.stride, weight.address, weight.stride, 0, out.address, out.stride,
            )  # fmt: skip
        if bias is not None and id(op.output) not in self.cell.inline_maps:
            plain.add_bias(out.view(rows, op.output.width), bias.array.reshape(-1))

    def _has_initial(self, op: Op) -> bool:
        return self._given[op.inputs[0].base.place]

    def _outputs(self, y: Ragged) -> None:
        column = 0
        out = matrix_of(y.values)
        for value in self.cell.exports:
            part = out.part(0, column, value.width, self._size)
            self._pick(self._whole(value), None, self.layout.inverse, part)
            column += value.width
        last = self.layout.last
        index = np.where(last < 0, -1 - np.arange(last.size), last)
        for k, value in enumerate(self.cell.following):
            init = self.inits[k]
            other = None if init is None else matrix_of(init.values)
            self._pick(self._whole(value), other, index, matrix_of(self.batch.ports[k].values))

    # Where things are -----------------------------------------------------------------------------

    def _matrix(self, name: str) -> Matrix:
        found = self.matrices[name]
        assert found is not None
        return found

    def _whole(self, value: Value) -> Matrix:
        """All rows of a packed value."""
        if value.base.origin == "stream":
            found, column = self._matrix(f"X{value.base.place}"), value.column
        else:
            buffer, column = self.cell.places.place(value)
            found = self._matrix(buffer.name)
        return found.part(0, column, value.width, self._size)

    def _part(self, value: Value, t: int) -> Matrix | None:
        """A value's rows in step t; None for a state that is all zeros."""
        s, _, _, p = self.shard.steps[t]
        base = value.base
        if base.origin == "prev":
            if p < 0:
                found = self.matrices[f"I{base.place}"]
                return found and found.part(0, value.column, value.width, self._size)
            state = self.cell.following[base.place]
            buffer, column = self.cell.places.place(state)
            column += value.column
            return self._matrix(buffer.name).part(p, column, value.width, self._size)
        if base.origin == "stream":
            return self._matrix(f"X{base.place}").part(s, value.column, value.width, self._size)
        buffer, column = self.cell.places.place(value)
        row = s if buffer.packed else 0
        return self._matrix(buffer.name).part(row, column, value.width, self._size)

    def _rows(self, value: Value, t: int) -> Array:
        """The same as a contiguous array; a copy where the rows are part of wider ones."""
        n = self.shard.steps[t][2]
        part = self._part(value, t)
        if part is not None and part.stride == value.width:
            return part.view(n, value.width)
        rows = matrix_of(self._queue.empty((n, value.width), self.batch.dtype))
        if part is None:
            plain.fill(rows.array, 0)
        else:
            self._move(part, rows, n, value.width, add=False)
        return rows.array

    def _argument(self, value: Value, t: int) -> Any:
        return value.base.place if value.base.origin == "memory" else self._rows(value, t)

    def _sorted_memories(self) -> list[Ragged]:
        """Each memory's rows in the order of the sentences."""
        found = []
        for memory in self.memories:
            index, lengths = memory_rows(memory, self.shard)
            rows = self._queue.cupy.empty((index.size, memory.values.shape[1]), self.batch.dtype)
            self._pick(matrix_of(memory.values), None, index, matrix_of(rows))
            found.append(Ragged(rows, lengths.tolist()))
        return found

    def _pick(self, source: Matrix, other: Matrix | None, index: Array, out: Matrix) -> None:
        place = None if other is None else (other.address, other.stride)
        pick_rows(
            self._queue, self.batch.dtype, (source.address, source.stride), place, index,
            (out.address, out.stride), out.width,
        )  # fmt: skip

    def _move(self, source: Matrix, out: Matrix, rows: int, width: int, add: bool) -> None:
        move_columns(
            self._queue, self.batch.dtype, (source.address, source.stride),
            (out.address, out.stride), rows, width, add,
        )  # fmt: skip

    # Backward -------------------------------------------------------------------------------------

    def backward(self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> None:
        """Run every step backwards; then weights, streams, initial states and memories."""
        cell = self.cell
        self._read(tuple([batch.input(k) for k in range(len(batch.inputs))]))
        self._cublas = self._queue.cublas(batch.dtype)
        scratch = Scratch(batch.scratch)
        self._start(scratch)
        self._start_backward(scratch, dy, dxs)
        sink = ShardGradients()
        memory_gradients = self._memory_gradients()
        for step in self._generic.values():
            step.memory_gradients = memory_gradients
            step.give_gradients_to(sink)
        kernels = {
            (number, turn): self._repeated(pair.backward, turn)
            for number, pair in cell.kernels.items()
            if pair.backward is not None
            for turn in range(2)
        }
        first = self._first_of_tail()
        if cell.tail is not None:
            self._launch_tail(f"{cell.name}_tail_backward", cell.tail.arrays_backward, first)
        turn = (len(self.shard.steps) - first) % 2
        for t in range(first - 1, -1, -1):
            self._clear_step(t, turn)
            for number in range(len(cell.items) - 1, -1, -1):
                item = cell.items[number]
                if isinstance(item, Group):
                    backward = cell.kernels[number].backward
                    if backward is not None:
                        grid = -(-self.shard.steps[t][2] * backward.width // THREADS)
                        kernels[number, turn].launch(grid, THREADS, t)
                elif item.kind == "linear":
                    self._map_backward(item, t, turn)
                else:
                    self._generic_backward(item, t, turn)
            turn = 1 - turn
        self._turn = turn
        gradients = batch.parameter_gradients()
        sink.pass_on(gradients)
        self._weight_gradients(ParameterRows(gradients), scratch)
        self._input_gradients(dxs, memory_gradients)
        batch.saved.clear()  # gradients have taken its place: no second backward

    def _start_backward(self, scratch: Scratch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> None:
        cell, tokens, sentences = self.cell, self.layout.order.size, self.shard.sentences.size
        rows = self.matrices["dY"] = matrix_of(scratch.take(tokens, cell.width))
        self._pick(matrix_of(dy.values), None, self.layout.order, rows)
        for k, state in enumerate(cell.program.states):
            given = matrix_of(self.batch.port_gradients[k].values)
            for turn in range(2):
                carried = matrix_of(scratch.take(sentences, state.width))
                self._pick(given, None, self.shard.sentences, carried)
                self.matrices[f"C{k}_{turn}"] = carried
        for memory in cell.gradients.values():
            buffer = memory.buffer
            if buffer.name[0] in "NP":  # carried, or in the place of packed values
                continue
            if buffer.name[0] == "d" and dxs[int(buffer.name[2:])] is None:
                self.matrices[buffer.name] = None
                continue
            count = tokens if buffer.packed else sentences
            rows = self.matrices[buffer.name] = matrix_of(scratch.take(count, buffer.width))
            if memory.cleared and buffer.packed:
                plain.fill(rows.array, 0)

    def _clear_step(self, t: int, turn: int) -> None:
        n = self.shard.steps[t][2]
        for memory in self.cell.gradients.values():
            buffer = memory.buffer
            if memory.cleared and not buffer.packed:
                name = buffer.name
                if name[0] == "N":
                    name = f"C{name[1:]}_{1 - turn}"
                plain.fill(self._matrix(name).view(n, buffer.width), 0)

    def _gradient(self, value: Value, t: int, turn: int) -> Matrix | None:
        """Where a value's gradient goes in step t; None where nobody wants it."""
        buffer = self.cell.gradient_of(value.base).buffer
        s, _, _, p = self.shard.steps[t]
        if buffer.name[0] == "N":
            if p < 0 and not self._given[value.base.place]:
                return None
            found: Matrix | None = self._matrix(f"C{value.base.place}_{1 - turn}")
        else:
            found = self.matrices[buffer.name]
        row = s if buffer.packed else 0
        return found and found.part(row, value.column, value.width, self._size)

    def _map_backward(self, op: Op, t: int, turn: int) -> None:
        """dx (+)= dy W of one step."""
        how = self.cell.map_gradients.get(id(op))
        out = None if how is None else self._gradient(op.inputs[0], t, turn)
        if how is None or out is None:
            return
        dy = self._gradient(op.output, t, turn)
        assert dy is not None
        weight = self._matrix(f"V{self.cell.maps[id(op)]}")
        self._cublas.gemm(
            False, False, self.shard.steps[t][2], weight.width, op.output.width,
            dy.address, dy.stride, weight.address, weight.stride, int(how.adds),
            out.address, out.stride,
        )  # fmt: skip

    def _generic_backward(self, op: Op, t: int, turn: int) -> None:
        how = self.cell.generic_gradients.get(id(op))
        if how is None:
            return
        n = self.shard.steps[t][2]
        retains = op.node.retains
        dy = self._gradient(op.output, t, turn)
        assert dy is not None
        saved, targets, after = [], [], []
        for position, (x, adds) in enumerate(zip(op.inputs, how.adds, strict=True)):
            is_memory = x.base.origin == "memory"
            kept = retains.input(position) or is_memory
            saved.append(self._argument(x, t) if kept else None)
            out = None if is_memory else self._gradient(x, t, turn)
            if out is not None and (adds or out.stride != x.width):
                rows = matrix_of(self._queue.empty((n, x.width), self.batch.dtype))
                after.append((rows, out, x.width, adds))
                out = rows
            targets.append(None if out is None else out.view(n, x.width))
        y = self._rows(op.output, t) if retains.output else None
        dy_rows = dy.view(n, op.output.width)
        with self._in_turn(op):
            self._generic[id(op)].backward(t, n, dy_rows, y, tuple(saved), tuple(targets))
        for rows, out, width, adds in after:
            self._move(rows, out, n, width, adds)

    def _memory_gradients(self) -> list[Ragged]:
        found = []
        for memory in self.memories if self._generic else ():
            index, lengths = memory_rows(memory, self.shard)
            rows = self._queue.cupy.empty((index.size, memory.values.shape[1]), self.batch.dtype)
            plain.fill(rows, 0)
            found.append(Ragged(rows, lengths.tolist()))
        return found

    # After the loop -------------------------------------------------------------------------------

    def _weight_gradients(self, rows: ParameterRows, scratch: Scratch) -> None:
        cell, tokens = self.cell, self.layout.order.size
        for op in [*cell.program.stream_maps, *cell.program.ops]:
            if op.kind != "linear" or cell.find_gradient(op.output) is None:
                continue
            dy = self._matrix(cell.gradient_of(op.output).buffer.name)
            zero = self._zero_rows(op)
            x = self._map_input(op, scratch)
            weight_gradients(self._queue, rows, op, x, dy, zero, tokens)
            bias_gradients(self._queue, rows, op, dy)
            if op in cell.program.stream_maps:
                self._stream_gradient(op, dy)

    def _zero_rows(self, op: Op) -> int:
        """How many of the first rows that a map multiplied are zeros."""
        base = op.inputs[0].base
        known = base.origin == "prev" and not self._given[base.place] and self.shard.steps
        return self.shard.steps[0][2] if known else 0

    def _map_input(self, op: Op, scratch: Scratch) -> Matrix:
        """All rows that a linear map multiplied, packed."""
        (value,) = op.inputs
        if value.base.origin != "prev":
            return self._whole(value)
        part = value.base.place
        name = f"H{part}"
        if name not in self.matrices:
            state = self.cell.following[part]
            rows = matrix_of(scratch.take(self.layout.order.size, state.width))
            previous = self.layout.previous
            index = np.where(previous < 0, -1 - np.arange(previous.size), previous)
            self._pick(self._whole(state), self.matrices[f"I{part}"], index, rows)
            self.matrices[name] = rows
        return self._matrix(name).part(0, value.column, value.width, self._size)

    def _stream_gradient(self, op: Op, dy: Matrix) -> None:
        """dx (+)= dy W for all rows."""
        (x,) = op.inputs
        rows = self.matrices[f"dX{x.base.place}"]
        if rows is None:
            return
        out = rows.part(0, x.column, x.width, self._size)
        weight = self._matrix(f"V{self.cell.maps[id(op)]}")
        self._cublas.gemm(
            False, False, self.layout.order.size, weight.width, op.output.width,
            dy.address, dy.stride, weight.address, weight.stride,
            int(self.cell.stream_adds[id(op)]), out.address, out.stride,
        )  # fmt: skip

    def _input_gradients(
        self, dxs: tuple[Ragged | None, ...], memory_gradients: list[Ragged]
    ) -> None:
        for k, value in enumerate(self.cell.program.streams):
            dx = dxs[k]
            if dx is not None and self.cell.find_gradient(value) is not None:
                rows = self._matrix(f"dX{k}")
                self._pick(rows, None, self.layout.inverse, matrix_of(dx.values))
            elif dx is not None:
                plain.fill(dx.values, 0)
        position = len(self.streams)
        back = np.argsort(self.shard.sentences, kind="stable")
        for k, given in enumerate(self._given):
            dx = dxs[position] if given else None
            position += given
            if dx is not None:
                carried = self._matrix(f"C{k}_{self._turn}")
                self._pick(carried, None, back, matrix_of(dx.values))
        for place, memory in enumerate(self.memories):
            dx = dxs[position + place]
            if dx is None:
                continue
            if not memory_gradients:
                plain.fill(dx.values, 0)
                continue
            index, _ = memory_rows(memory, self.shard)
            back_rows = np.argsort(index, kind="stable")
            source = matrix_of(memory_gradients[place].values)
            self._pick(source, None, back_rows, matrix_of(dx.values))
