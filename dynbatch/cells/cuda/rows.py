"""`LoopRows`: where the values of a loop lie on a GPU, whole and in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cells.cuda.linear_maps import wide_maps
from dynbatch.compiler.arrays import Step
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime.device_loops import (
    DeviceMatrix,
    MatrixProduct,
    RowGathers,
    Works,
    matrix_of,
    queue,
)


class RowsOfSteps(NamedTuple):
    """A value's rows in several steps, by address.

    addresses: (steps,) of the first element; 0 where it has no matrix.
    stride:    elements from a row to the next; an array where it differs from step to step.
    """

    addresses: Array
    stride: int | Array


class LoopRows:
    """The addresses of a loop's values.

    Attributes:
        steps:    in order.
        matrices: arrays by the names of `emit`, and V0 … and b0 … for wide weights and biases; None
            for what is all zeros, or a gradient that nobody asks for.
        table:    (T, 3) first row, number of rows and first row of the step before, for kernels.
    """

    def __init__(self, loop: Loop, dtype: DType, steps: Sequence[Step]) -> None:
        self.loop = loop
        self.dtype = dtype
        self.queue = queue()
        self.steps = steps
        self.matrices: dict[str, DeviceMatrix | None] = {}
        table = [(s, n, p) for s, _, n, p in steps]
        self.table = np.array(table, np.int32).reshape(-1, 3)

    def add(self, arrays: Mapping[str, Array | None]) -> None:
        """Add arrays by name."""
        self.matrices |= {name: x if x is None else matrix_of(x) for name, x in arrays.items()}

    def add_weights(self, rooms: Mapping[str, Array], gathers: RowGathers | None) -> None:
        """The wide weights of all linear maps, and their biases; see `wide_maps`."""
        self.add(wide_maps(self.loop, rooms, gathers))

    def matrix(self, name: str) -> DeviceMatrix:
        matrix = self.matrices[name]
        assert matrix is not None
        return matrix

    def array(self, name: str) -> Array:
        return self.matrix(name).array

    def maps_ahead(self, works: Works) -> None:
        """Write down the maps of streams ahead of the loop."""
        loop = self.loop
        for op in loop.program.ahead:
            number, x, out = loop.maps[id(op)], self.whole(op.inputs[0]), self.whole(op.output)
            weight, bias = self.array(f"V{number}"), self.matrices[f"b{number}"]
            works.then(MatrixProduct(self.queue, (False, True), x, weight, 0, out))
            if bias is not None and id(op.output) not in loop.inline_maps:
                works.call(partial(arrays.add_bias, out, bias.array.reshape(-1)))

    def base_of(self, name: str, order: Array | None = None) -> int | Array | None:
        """The address of a matrix, which kernels see as NULL if it is missing.

        Args:
            order: steps; where a matrix is another one in some of them, the address in each.
        """
        matrix = self.matrices[name]
        return None if matrix is None else matrix.address

    def place(self, value: Value) -> DeviceMatrix:
        buffer, first = self.loop.places.buffer_of(value.base)
        return self.matrix(buffer.name).part(0, first + value.column, value.width)

    def whole(self, value: Value) -> Array:
        """A value's rows in all steps."""
        matrix = self.place(value)
        return matrix.view(len(matrix.array))

    def multiplied(self, value: Value) -> Array:
        """The rows that linear maps multiplied, after zeros that they leave out."""
        return self.whole(value)

    def of_step(self, value: Value, t: int) -> DeviceMatrix | None:
        """A value's rows in step t; None where it has no matrix."""
        return self._part(value.base, value.column, value.width, t, self.steps[t][0])

    def _part(self, base: Value, column: int, width: int, t: int, row: int) -> DeviceMatrix | None:
        buffer, first = self.loop.places.buffer_of(base)
        matrix = self.matrices[self.in_turn(buffer.name, t)]
        return matrix and matrix.part(row if buffer.packed else 0, first + column, width)

    def in_turn(self, name: str, t: int) -> str:
        return name

    def of_steps(self, value: Value, order: Array) -> RowsOfSteps:
        return self._rows_of(value.base, value.column, order, self.table[order, 0])

    def _rows_of(self, base: Value, column: int, order: Array, rows: Array) -> RowsOfSteps:
        buffer, first = self.loop.places.buffer_of(base)
        start = self.base_of(buffer.name, order)
        if start is None:
            return RowsOfSteps(np.zeros(order.size, np.int64), buffer.width)
        row = rows.astype(np.int64) if buffer.packed else np.zeros(order.size, np.int64)
        elements = row * buffer.width + first + column
        return RowsOfSteps(start + elements * self.dtype.itemsize, buffer.width)

    def rows_of(self, value: Value, t: int, strided: bool = False) -> Array:
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
        """The argument of an operator with own kernels: an array, or the number of a memory."""
        value = op.inputs[position]
        if value.base.origin is Origin.MEMORY:
            return value.base.number
        return self.rows_of(value, t, position in op.node.strided())
