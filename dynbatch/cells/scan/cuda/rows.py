"""`ScanRows`: the rows of one batch of scans on a GPU, in prefix layout, by address."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.cells.cuda.linear_maps import wide_bias, wide_weight
from dynbatch.cells.cuda.matrices import DeviceMatrix, matrix_of
from dynbatch.cells.scan.prefix import prefix_layout
from dynbatch.compiler.arrays import Scratch, memory_rows
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.rows import pick_rows
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class ScanRows:
    """The addresses of a batch of scans' values.

    Attributes:
        shard:    order of rows; `steps` says which of them a step has. `inverse` is the row of each
            token in this order.
        streams, inits, memories: the packed inputs; of a state that is zeros None.
        given:    which parts of the initial state are given.
        matrices: by the names of `emit`, and V0 … and b0 … for wide weights and biases. Gradients
            of the state, C0 … and N0 …, change places after each step: see `turn`.
        table:    (T, 3) first row, running sentences and first row of the step before, for kernels.
    """

    def __init__(self, batch: Batch, loop: Loop, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        self.loop = loop
        self.dtype = batch.dtype
        self.queue = queue()
        lengths = np.asarray(y.lengths, np.int64)
        (self.shard,) = prefix_layout(lengths, y.offsets, batch.first.reverse, 1)
        self.sentences = self.shard.sentences
        self.steps = self.shard.steps
        self.inverse = np.argsort(self.shard.order)
        self.tokens: int = self.shard.rows
        self.given: tuple[bool, ...] = batch.first.given_states
        self.matrices: dict[str, DeviceMatrix | None] = {}
        table = [(s, n, p) for s, _, n, p in self.steps]
        self.table = np.array(table, np.int32).reshape(-1, 3)
        self.read(xs)

    def read(self, xs: tuple[Ragged, ...]) -> None:
        """Take the packed inputs."""
        streams = len(self.loop.program.streams)
        states = streams + sum(self.given)
        inits = iter(xs[streams:states])
        self.streams, self.memories = xs[:streams], xs[states:]
        self.inits = [next(inits) if given else None for given in self.given]

    def add_matrix(self, name: str, scratch: Scratch, rows: int, width: int) -> DeviceMatrix:
        """A matrix in the scratch, under a name."""
        matrix = self.matrices[name] = matrix_of(scratch.take(rows, width))
        return matrix

    def start(self, scratch: Scratch) -> None:
        """Streams in prefix order, initial states, weights: the same for both passes."""
        loop = self.loop
        for k, (stream, value) in enumerate(zip(self.streams, loop.program.streams, strict=True)):
            rows = self.add_matrix(f"X{k}", scratch, self.tokens, value.width)
            self.pick(matrix_of(stream.values), self.shard.order, rows)
        for k, (init, state) in enumerate(zip(self.inits, loop.program.states, strict=True)):
            self.matrices[f"I{k}"] = None
            if init is not None:
                rows = self.add_matrix(f"I{k}", scratch, self.sentences.size, state.width)
                self.pick(matrix_of(init.values), self.sentences, rows)
        for op in loop.program.linear_maps:
            number = loop.maps[id(op)]
            self.matrices[f"V{number}"] = wide_weight(op, scratch)
            self.matrices[f"b{number}"] = wide_bias(op, scratch)

    # Where things are -----------------------------------------------------------------------------

    def matrix(self, name: str) -> DeviceMatrix:
        """An existing matrix."""
        matrix = self.matrices[name]
        assert matrix is not None
        return matrix

    def addresses(self, names: list[str]) -> list[int | None]:
        """The addresses of matrices; None, which kernels see as NULL, for missing ones."""
        matrices = [self.matrices[name] for name in names]
        return [None if matrix is None else matrix.address for matrix in matrices]

    def turn(self) -> None:
        """Let the gradient of the state that a step found be that which the step before left."""
        matrices = self.matrices
        for left, found in self.loop.carried:
            matrices[left], matrices[found] = matrices[found], matrices[left]

    def whole(self, value: Value) -> DeviceMatrix:
        """All rows of a packed value."""
        buffer, first = self.loop.places.buffer_of(value.base)
        return self.matrix(buffer.name).part(0, first + value.column, value.width)

    def of_step(self, value: Value, t: int) -> DeviceMatrix | None:
        """A value's rows in step t; None for a state that is all zeros, or an unwanted gradient."""
        row, _, _, p = self.steps[t]
        base, column = value.base, value.column
        if base.origin is Origin.STATE and p < 0:
            init = self.matrices[f"I{base.number}"]
            return init and init.part(0, column, value.width)
        if base.origin is Origin.STATE:
            left, row = self.loop.program.following[base.number], p
            base, column = left.base, left.column + column
        buffer, first = self.loop.places.buffer_of(base)
        matrix = self.matrices[buffer.name]
        return matrix and matrix.part(row if buffer.packed else 0, first + column, value.width)

    def array(self, value: Value, t: int, strided: bool = False) -> Array:
        """A value's rows as an array; a copy if they are part of wider ones, unless `strided`."""
        n = self.steps[t][2]
        part = self.of_step(value, t)
        if part is not None and (strided or part.stride == value.width):
            return part.view(n)
        rows = matrix_of(self.queue.empty((n, value.width), self.dtype))
        if part is None:
            arrays.fill(rows.array, 0)
        else:
            arrays.copy(part.view(n), rows.array)
        return rows.array

    def argument(self, op: Op, position: int, t: int) -> Any:
        """What an operator with kernels of its own gets: an array, or the number of a memory."""
        value = op.inputs[position]
        if value.base.origin is Origin.MEMORY:
            return value.base.number
        return self.array(value, t, position in op.node.strided)

    # Copies ---------------------------------------------------------------------------------------

    # They go by address. A flush before a node type of the user's ends what the queue kept until
    # then, so that arrays of this run only are kept anew for the copy.

    def pick(
        self,
        source: DeviceMatrix,
        index: Array,
        out: DeviceMatrix,
        other: DeviceMatrix | None = None,
    ) -> None:
        """out[i] = source[index[i]], or other[-1 - index[i]] where the index is negative."""
        self.queue.keep(source.array, out.array)
        place = None if other is None else (other.address, other.stride)
        pick_rows(
            self.queue, self.dtype, (source.address, source.stride), place, index,
            (out.address, out.stride), out.width,
        )  # fmt: skip

    def sorted_memories(self, zeros: bool = False) -> list[Ragged]:
        """Each memory's rows in the order of the sentences, or as many zeros."""
        memories = []
        for memory in self.memories:
            index, lengths = memory_rows(memory, self.shard.sentences)
            rows = self.queue.empty((index.size, memory.values.shape[1]), self.dtype)
            if zeros:
                arrays.fill(rows, 0)
            else:
                self.pick(matrix_of(memory.values), index, matrix_of(rows))
            memories.append(Ragged(rows, lengths.tolist()))
        return memories
