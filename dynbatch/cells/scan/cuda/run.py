"""`DeviceScanRun`: one batch of scans on a GPU, step by step forward and back."""

from __future__ import annotations

import numpy as np

from dynbatch.cells.cuda.gathers import RowGathers
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import wide_rooms
from dynbatch.cells.cuda.matrices import DeviceMatrix, matrix_of
from dynbatch.cells.scan.cuda.parameter_gradients import ScanGradients
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.cuda import persistent as tail
from dynbatch.compiler.cuda.cell import DeviceCell, Items, PassOnDevice
from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op, OpCode
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.work import RepeatedLaunch
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

Launches = dict[str, RepeatedLaunch]
"""The kernels of a pass with their arguments, by name."""


class DeviceScanRun:
    """One batch of scans: forward, and later backward."""

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        self.batch = batch
        self.cell: DeviceCell = batch.first.cell.on_device
        self.loop = self.cell.loop
        self.rows = ScanRows(batch, self.loop, y, xs)
        self.rows.queue.kernels(batch.dtype).add(self.cell.source)
        carried = zip(self.loop.carried, self.rows.given, strict=True)
        self._unwanted = {found for (_, found), is_given in carried if not is_given}

    @staticmethod
    def saved(batch: Batch) -> dict[str, tuple[int, int]]:
        """The values that forward leaves: all packed ones, and weights that it gathered."""
        rows, loop = sum([node.length for node in batch.nodes]), batch.first.cell.on_device.loop
        return {b.name: (rows, b.width) for b in loop.storage.packed} | wide_rooms(loop)

    @staticmethod
    def elements(batch: Batch, backward: bool) -> int:
        """Scratch elements that one pass needs."""
        loop: Loop = batch.first.cell.on_device.loop
        program = loop.program
        tokens: int = sum([node.length for node in batch.nodes])
        sentences = len(batch.nodes)
        states = sum([v.width for v in program.states])
        streams = sum([v.width for v in program.streams])
        total: int = tokens * streams + sentences * states
        if not backward:
            total += sentences * sum([b.width for b in loop.storage.temporary])
            kept = DeviceScanRun.saved(batch).values()
            return total + (0 if batch.keeps else sum([rows * width for rows, width in kept]))
        per_token = sum([b.width for b in loop.gradients.packed]) + streams + loop.width
        per_token += sum([state.width for state in loop.found])
        per_sentence = sum([b.width for b in loop.gradients.temporary]) + 2 * states
        return total + tokens * per_token + sentences * per_sentence

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> None:
        """Run every step, then bring outputs and last states into sentence order."""
        batch, rows, loop = self.batch, self.rows, self.loop
        self._cublas = rows.queue.cublas(batch.dtype)
        scratch = Scratch(batch.scratch)
        kept = batch.saved
        if not batch.keeps:
            kept = {name: scratch.take(*size) for name, size in self.saved(batch).items()}
        for b in loop.storage.packed:
            rows.matrices[b.name] = matrix_of(kept[b.name])
        for b in loop.storage.temporary:
            rows.add_matrix(b.name, scratch, rows.sentences.size, b.width)
        gathers = RowGathers(rows.queue, batch.dtype)
        rows.start(scratch, kept, gathers)
        memories = rows.sorted_memories(gathers) if loop.program.generic else []
        gathers.run()
        for op in loop.program.ahead:
            self._map(op, rows.whole(op.inputs[0]), rows.whole(op.output), rows.tokens)
        self._generic = DeviceGenericSteps(rows, batch, memories, rows.sentences.size)
        launches = self._repeated(self.cell.forward)
        first = self._first_of_tail()
        for t in range(first):
            few = self._is_few(t)
            self._step(self.cell.forward.few if few else self.cell.forward.items, launches, t)
        self._launch_tail(0, first)
        self._outputs(y)

    def _is_few(self, t: int) -> bool:
        """Whether a step has few rows, so that kernels make products."""
        return self.cell.is_few(self.rows.steps[t][2], self.batch.dtype.itemsize)

    def _items_back(self, t: int, goes_on: bool) -> tuple[Items, bool]:
        """What step t of backward runs, and whether the one behind goes on with its products."""
        step = self.cell.backward
        if not self._is_few(t):
            return step.items, False
        is_followed = step.across is not None and t > 0 and self._is_few(t - 1)
        return step.items_of_few(goes_on, is_followed), is_followed

    def _step(self, items: Items, launches: Launches, t: int) -> None:
        """All items of a step, forward or back."""
        _, _, n, p = self.rows.steps[t]
        for item in items:
            if isinstance(item, Kernel):
                if p >= 0 or not item.stores <= self._unwanted:
                    launches[item.name].launch(item.grid(n), item.block, t)
            elif item.opcode is OpCode.GENERIC:
                self._generic.forward(item, t)
            elif item.opcode is OpCode.GENERIC_GRADIENT:
                self._generic.backward(item, t)
            elif item.is_linear:
                self._loop_map(item, t)
            else:
                self._map_backward(item, t)

    def _loop_map(self, op: Op, t: int) -> None:
        rows, loop = self.rows, self.loop
        _, _, n, p = rows.steps[t]
        if p >= 0 or not loop.skips_zeros(op) or rows.given[op.inputs[0].base.number]:
            out = rows.of_step(op.output, t)
            assert out is not None
            self._map(op, rows.of_step(op.inputs[0], t), out, n)

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

    def _repeated(self, step: PassOnDevice) -> Launches:
        """The kernels of a pass with their matrices."""
        launches = {}
        every = [*step.items, *step.few, step.across]
        for kernel in [item for item in every if isinstance(item, Kernel)]:
            args = [*self.rows.addresses(kernel.arrays.names), self.rows.table]
            name = f"{self.cell.name}_{kernel.name}"
            launches[kernel.name] = self.rows.queue.repeated(self.batch.dtype, name, args)
        return launches

    def _first_of_tail(self) -> int:
        """The step from which on one launch does the rest; the number of steps without a tail."""
        steps, itemsize = self.rows.steps, self.batch.dtype.itemsize
        if not self.cell.tails or self.loop.weights * itemsize > tail.TAIL_BYTES:
            return len(steps)
        return sum([n > tail.TAIL_ROWS for _, _, n, _ in steps])

    def _launch_tail(self, number: int, first: int) -> None:
        """The steps from `first` on, forward (0) or back (1)."""
        steps = self.rows.steps
        if first < len(steps):
            kernel = self.cell.tails[number]
            args = [*self.rows.addresses(kernel.arrays.names), self.rows.table, first, len(steps)]
            grid, block = (steps[first][2],), (tail.THREADS,)
            name = f"{self.cell.name}_{kernel.name}"
            self.rows.queue.launch(self.batch.dtype, name, grid, block, args)

    def _outputs(self, y: Ragged) -> None:
        rows, column, gathers = self.rows, 0, RowGathers(self.rows.queue, self.batch.dtype)
        out = matrix_of(y.values)
        for value in self.loop.program.exports:
            gathers.pick(rows.whole(value), rows.inverse, out.part(0, column, value.width))
            column += value.width
        index, last = -1 - np.arange(rows.sentences.size), rows.shard.last()
        index[rows.sentences[: last.size]] = last
        for k, value in enumerate(self.loop.program.following):
            init = rows.inits[k]
            other = None if init is None else matrix_of(init.values)
            gathers.pick(rows.whole(value), index, matrix_of(self.batch.ports[k].values), other)
        gathers.run()

    # Backward -------------------------------------------------------------------------------------

    def backward(self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> None:
        """Run every step backwards; then weights, streams, initial states and memories."""
        rows, cell = self.rows, self.cell
        self._cublas = rows.queue.cublas(batch.dtype)
        rows.read(tuple([batch.input(k) for k in range(len(batch.inputs))]))
        scratch = Scratch(batch.scratch)
        gathers = RowGathers(rows.queue, batch.dtype)
        rows.start(scratch, batch.saved, gathers)
        self._start_backward(scratch, gathers, dy, dxs)
        scan_gradients = ScanGradients(rows, scratch, gathers)
        sink = ShardGradients()
        memory_gradients = rows.sorted_memories(gathers, zeros=True) if self._generic else []
        gathers.run()
        self._generic.begin_backward(memory_gradients, sink)
        first, steps = self._first_of_tail(), len(rows.steps)
        self._launch_tail(1, first)
        for _ in range(steps - first):
            rows.turn()
        launches = []
        for _ in range(2):
            launches.append(self._repeated(cell.backward))
            rows.turn()
        goes_on = False
        for t in range(first - 1, -1, -1):
            items, goes_on = self._items_back(t, goes_on)
            self._step(items, launches[(first - 1 - t) % 2], t)
            rows.turn()
        self._generic.finish()
        gradients = batch.parameter_gradients()
        sink.pass_on(gradients)
        scan_gradients.parameters(gradients)
        scan_gradients.inputs(dxs, memory_gradients)
        batch.saved.clear()  # gradients have taken its place: no second backward

    def _start_backward(
        self, scratch: Scratch, gathers: RowGathers, dy: Ragged, dxs: tuple[Ragged | None, ...]
    ) -> None:
        rows, loop = self.rows, self.loop
        packed = rows.add_matrix("dY", scratch, rows.tokens, loop.width)
        gathers.pick(matrix_of(dy.values), rows.shard.order, packed)
        for names, state in zip(loop.carried, loop.program.states, strict=True):
            given = matrix_of(self.batch.port_gradients[state.number].values)
            for name in names:
                carried = rows.add_matrix(name, scratch, rows.sentences.size, state.width)
                gathers.pick(given, rows.sentences, carried)
        reached = self.batch.first.cell.reached
        for k, value in enumerate(loop.program.streams):
            rows.matrices[f"dX{k}"] = None
            if k in loop.read_again or (dxs[k] is not None and k in reached):
                rows.add_matrix(f"dX{k}", scratch, rows.tokens, value.width)
        for b in [*loop.gradients.packed, *loop.gradients.temporary]:
            count = rows.tokens if b.packed else rows.sentences.size
            rows.add_matrix(b.name, scratch, count, b.width)

    def _map_backward(self, op: Op, t: int) -> None:
        """dx = dy W of one step, added to the operator's second operand if it has one."""
        rows, source = self.rows, op.source
        _, _, n, p = rows.steps[t]
        assert source is not None
        if source.reads_state and p < 0 and not rows.given[source.inputs[0].base.number]:
            return
        dy, *base = [rows.of_step(value, t) for value in op.inputs]
        out = rows.of_step(op.output, t)
        assert dy is not None and out is not None
        for each in base:
            if each is not None and each.address != out.address:
                arrays.copy(each.view(n), out.view(n))
        weight = rows.matrix(f"V{self.loop.maps[id(source)]}")
        self._cublas.gemm(
            False, False, n, weight.width, source.output.width, dy.address, dy.stride,
            weight.address, weight.stride, len(base), out.address, out.stride,
        )  # fmt: skip
