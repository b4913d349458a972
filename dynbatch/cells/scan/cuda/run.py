"""`DeviceScanRun`: one batch of scans on a GPU, step by step forward and back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from dynbatch.cells.generic import GenericStep
from dynbatch.cells.scan.cuda.matrix import DeviceMatrix, matrix_of
from dynbatch.cells.scan.cuda.parameter_gradients import ScanGradients
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.buffers import Role, array_name
from dynbatch.compiler.cuda import persistent as tail
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.emit import THREADS, Kernel
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lanes import KernelGroup
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.work import RepeatedLaunch
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class DeviceScanRun:
    """One batch of scans: forward, and later backward."""

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        self.batch = batch
        self.cell: DeviceCell = batch.first.cell.on_device
        self.loop = self.cell.loop
        self.rows = ScanRows(batch, self.loop, y, xs)
        self.rows.queue.kernels(batch.dtype).add(self.cell.source)
        self._generic: dict[int, GenericStep] = {}

    @staticmethod
    def elements(batch: Batch, backward: bool) -> int:
        """Scratch elements that one pass needs."""
        loop: Loop = batch.first.cell.on_device.loop
        program = loop.program
        tokens: int = sum([node.length for node in batch.nodes])
        sentences = len(batch.nodes)
        states = sum([v.width for v in program.states])
        streams = sum([v.width for v in program.streams])
        pieces = [(p.width, op.inputs[0].width) for op in loop.linear for p in op.pieces]
        weights: int = sum([width * (inner + 1) for width, inner in pieces])
        total: int = tokens * streams + sentences * states + weights
        if not backward:
            temporary = sum([b.width for b in loop.storage.temporary])
            packed = 0 if batch.keeps else sum([b.width for b in loop.storage.packed])
            return total + sentences * temporary + tokens * packed
        buffers = [g.buffer for g in loop.gradients.values() if g.buffer.role is Role.GRADIENT]
        per_token: int = sum([b.width for b in buffers if b.packed]) + streams + loop.width + states
        per_sentence = sum([b.width for b in buffers if not b.packed]) + 2 * states
        return total + tokens * per_token + sentences * per_sentence

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> None:
        """Run every step, then bring outputs and last states into sentence order."""
        batch, rows, loop = self.batch, self.rows, self.loop
        self._cublas = rows.queue.cublas(batch.dtype)
        scratch = Scratch(batch.scratch)
        for b in loop.storage.packed:
            if batch.keeps:
                rows.matrices[b.name] = matrix_of(batch.saved[b.name])
            else:
                rows.add_matrix(b.name, scratch, rows.tokens, b.width)
        for b in loop.storage.temporary:
            rows.add_matrix(b.name, scratch, rows.sentences.size, b.width)
        rows.start(scratch)
        for op in loop.program.stream_maps:
            self._map(op, rows.whole(op.inputs[0]), rows.whole(op.output), rows.tokens)
        memories = rows.sorted_memories() if loop.generic else []
        for op in loop.generic:
            self._generic[id(op)] = GenericStep(
                op, memories, rows.sentences.size, batch.dtype, batch.keeps, batch.xp
            )
        kernels = {k: self._repeated(pair.forward) for k, pair in self.cell.kernels.groups.items()}
        first = self._first_of_tail()
        for t in range(first):
            self._step(t, kernels)
        if self.cell.tail is not None:
            self._launch_tail(f"{self.cell.name}_tail", self.cell.tail.arrays, first)
        self._outputs(y)

    def _step(self, t: int, kernels: dict[int, RepeatedLaunch]) -> None:
        rows, loop = self.rows, self.loop
        _, _, n, p = rows.steps[t]
        for number, item in enumerate(loop.items):
            if isinstance(item, KernelGroup):
                width = self.cell.kernels.groups[number].forward.width
                kernels[number].launch(-(-n * width // THREADS), THREADS, t)
            elif item.opcode is OpCode.GENERIC:
                xs = [rows.argument(item, position, t) for position in range(len(item.inputs))]
                with self._in_turn(item):
                    self._generic[id(item)].forward(t, n, rows.array(item.output, t), *xs)
            elif p >= 0 or not loop.skips_zeros(item) or rows.given[item.inputs[0].base.number]:
                out = rows.of_step(item.output, t)
                assert out is not None
                self._map(item, rows.of_step(item.inputs[0], t), out, n)

    def _map(self, op: Op, x: DeviceMatrix | None, out: DeviceMatrix, count: int) -> None:
        """A linear map of some rows; None stands for zeros and gives zeros."""
        number = self.loop.maps[id(op)]
        weight, bias = self.rows.matrix(f"V{number}"), self.rows.matrices[f"b{number}"]
        if x is None:
            arrays.fill(out.view(count), 0)
        else:
            self._cublas.gemm(
                False, True, count, op.output.width, weight.width,
                x.address, x.stride, weight.address, weight.stride, 0, out.address, out.stride,
            )  # fmt: skip
        if bias is not None and id(op.output) not in self.loop.inline_maps:
            arrays.add_bias(out.view(count), bias.array.reshape(-1))

    def _in_turn(self, op: Op) -> AbstractContextManager[None]:
        """Start all queued work before a user's node type that computes with CuPy."""
        return nullcontext() if type(op.node).names_kernels else self.rows.queue.at_once()

    def _repeated(self, kernel: Kernel, turn: int = 0) -> RepeatedLaunch:
        """A kernel with its matrices; `turn` says which of two holds the carried gradients."""
        names = [_in_turn(array.role, array.label, turn) for array in kernel.arrays]
        args = [*self.rows.addresses(names), self.rows.table]
        return self.rows.queue.repeated(self.batch.dtype, kernel.name, args)

    def _first_of_tail(self) -> int:
        """The step from which on one launch does the rest; the number of steps without a tail."""
        found, steps = self.cell.tail, self.rows.steps
        if found is None or found.elements * self.batch.dtype.itemsize > tail.TAIL_BYTES:
            return len(steps)
        return sum([n > tail.TAIL_ROWS for _, _, n, _ in steps])

    def _launch_tail(self, name: str, arrays: list[str], first: int) -> None:
        steps = self.rows.steps
        if first < len(steps):
            args = [*self.rows.addresses(arrays), self.rows.table, first, len(steps)]
            grid, block = (steps[first][2],), (tail.THREADS,)
            self.rows.queue.launch(self.batch.dtype, name, grid, block, args)

    def _outputs(self, y: Ragged) -> None:
        rows, column = self.rows, 0
        out = matrix_of(y.values)
        for value in self.loop.exports:
            rows.pick(rows.whole(value), rows.layout.inverse, out.part(0, column, value.width))
            column += value.width
        last = rows.layout.last
        index = np.where(last < 0, -1 - np.arange(last.size), last)
        for k, value in enumerate(self.loop.following):
            init = rows.inits[k]
            other = None if init is None else matrix_of(init.values)
            rows.pick(rows.whole(value), index, matrix_of(self.batch.ports[k].values), other)

    # Backward -------------------------------------------------------------------------------------

    def backward(self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> None:
        """Run every step backwards; then weights, streams, initial states and memories."""
        rows, cell = self.rows, self.cell
        self._cublas = rows.queue.cublas(batch.dtype)
        rows.read(tuple([batch.input(k) for k in range(len(batch.inputs))]))
        scratch = Scratch(batch.scratch)
        rows.start(scratch)
        self._start_backward(scratch, dy, dxs)
        sink = ShardGradients()
        memory_gradients = rows.sorted_memories(zeros=True) if self._generic else []
        for step in self._generic.values():
            step.memory_gradients = memory_gradients
            step.give_gradients_to(sink)
        kernels = {
            (number, turn): self._repeated(pair.backward, turn)
            for number, pair in cell.kernels.groups.items()
            if pair.backward is not None
            for turn in range(2)
        }
        first = self._first_of_tail()
        if cell.tail is not None:
            self._launch_tail(f"{cell.name}_tail_backward", cell.tail.arrays_backward, first)
        turn = (len(rows.steps) - first) % 2
        for t in range(first - 1, -1, -1):
            self._step_backward(t, turn, kernels)
            turn = 1 - turn
        for step in self._generic.values():
            step.finish()
        gradients = batch.parameter_gradients()
        sink.pass_on(gradients)
        scan_gradients = ScanGradients(rows, cell.kernels, scratch)
        scan_gradients.parameters(gradients)
        scan_gradients.inputs(dxs, memory_gradients, turn)
        batch.saved.clear()  # gradients have taken its place: no second backward

    def _start_backward(self, scratch: Scratch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> None:
        rows, loop = self.rows, self.loop
        packed = rows.add_matrix("dY", scratch, rows.tokens, loop.width)
        rows.pick(matrix_of(dy.values), rows.layout.order, packed)
        for k, state in enumerate(loop.program.states):
            given = matrix_of(self.batch.port_gradients[k].values)
            for turn in range(2):
                carried = rows.add_matrix(f"C{k}_{turn}", scratch, rows.sentences.size, state.width)
                rows.pick(given, rows.sentences, carried)
        for memory in loop.gradients.values():
            buffer = memory.buffer
            if buffer.role in (Role.FOUND_GRADIENT, Role.PACKED):  # in the place of others
                continue
            if buffer.role is Role.STREAM_GRADIENT and dxs[int(buffer.label)] is None:
                rows.matrices[buffer.name] = None
                continue
            count = rows.tokens if buffer.packed else rows.sentences.size
            matrix = rows.add_matrix(buffer.name, scratch, count, buffer.width)
            if memory.cleared and buffer.packed:
                arrays.fill(matrix.array, 0)

    def _step_backward(
        self, t: int, turn: int, kernels: dict[tuple[int, int], RepeatedLaunch]
    ) -> None:
        loop, n = self.loop, self.rows.steps[t][2]
        for memory in loop.gradients.values():
            buffer = memory.buffer
            if memory.cleared and not buffer.packed:
                name = _in_turn(buffer.role, buffer.label, turn)
                arrays.fill(self.rows.matrix(name).view(n), 0)
        for number in range(len(loop.items) - 1, -1, -1):
            item = loop.items[number]
            if isinstance(item, KernelGroup):
                backward = self.cell.kernels.groups[number].backward
                if backward is not None:
                    kernels[number, turn].launch(-(-n * backward.width // THREADS), THREADS, t)
            elif item.opcode is OpCode.LINEAR:
                self._map_backward(item, t, turn)
            else:
                self._generic_backward(item, t, turn)

    def _gradient(self, value: Value, t: int, turn: int) -> DeviceMatrix | None:
        """The memory for a value's gradient in step t; None for an unwanted one."""
        rows, buffer = self.rows, self.loop.gradient_of(value.base).buffer
        s, _, _, p = rows.steps[t]
        if buffer.role is Role.FOUND_GRADIENT:
            if p < 0 and not rows.given[value.base.number]:
                return None
            found: DeviceMatrix | None = rows.matrix(_in_turn(buffer.role, buffer.label, turn))
        else:
            found = rows.matrices[buffer.name]
        return found and found.part(s if buffer.packed else 0, value.column, value.width)

    def _map_backward(self, op: Op, t: int, turn: int) -> None:
        """dx (+)= dy W of one step."""
        adds = self.cell.kernels.map_adds.get(id(op))
        out = None if adds is None else self._gradient(op.inputs[0], t, turn)
        if adds is None or out is None:
            return
        dy = self._gradient(op.output, t, turn)
        assert dy is not None
        weight = self.rows.matrix(f"V{self.loop.maps[id(op)]}")
        self._cublas.gemm(
            False, False, self.rows.steps[t][2], weight.width, op.output.width,
            dy.address, dy.stride, weight.address, weight.stride, int(adds),
            out.address, out.stride,
        )  # fmt: skip

    def _generic_backward(self, op: Op, t: int, turn: int) -> None:
        each_adds = self.cell.kernels.generic_adds.get(id(op))
        if each_adds is None:
            return
        rows, n, retains = self.rows, self.rows.steps[t][2], op.node.retains
        dy = self._gradient(op.output, t, turn)
        assert dy is not None
        saved, targets, after = [], [], []
        for position, (x, adds) in enumerate(zip(op.inputs, each_adds, strict=True)):
            is_memory = x.base.origin is Origin.MEMORY
            kept = retains.input(position) or is_memory
            saved.append(rows.argument(op, position, t) if kept else None)
            out = None if is_memory else self._gradient(x, t, turn)
            is_part = out is not None and out.stride != x.width
            if out is not None and (adds or (is_part and position not in op.node.strided)):
                after.append((matrix_of(rows.queue.empty((n, x.width), rows.dtype)), out, adds))
                out = after[-1][0]
            targets.append(None if out is None else out.view(n))
        y = rows.array(op.output, t) if retains.output else None
        with self._in_turn(op):
            self._generic[id(op)].backward(t, n, dy.view(n), y, tuple(saved), tuple(targets))
        for made, out, adds in after:
            rows.move(made, out, n, adds)


def _in_turn(role: Role, label: int | str, turn: int) -> str:
    """The name of an array. A state's gradient has two: one is read in this turn, one written."""
    if role is Role.LEFT_GRADIENT:
        return f"C{label}_{turn}"
    if role is Role.FOUND_GRADIENT:
        return f"C{label}_{1 - turn}"
    return array_name(role, label)
