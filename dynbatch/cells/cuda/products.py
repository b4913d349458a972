"""`LoopProducts`: a loop's linear maps on a GPU, for the rows of any step without a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.compiler.ir import Op, Value
from dynbatch.kernels import arrays

StepProduct = Callable[[int, int], None]
"""Makes a product for some rows: the first one, and how many."""


class StepPlace(NamedTuple):
    """The place of a value in a step that begins at row s: `address + s * of_row`, and its stride.

    of_row: bytes from a packed row to the next; 0 for values that live for a step.
    """

    address: int
    of_row: int
    stride: int


class LoopProducts:
    """The products of one pass, with all addresses looked up once.

    Args:
        rows: where values and weights lie.
    """

    def __init__(self, rows: LoopRows) -> None:
        self._rows = rows
        self._loop = rows.loop
        self._gemm = rows.queue.cublas(rows.dtype).gemm

    def place(self, value: Value) -> StepPlace:
        """Where a value lies."""
        buffer, first = self._loop.places.buffer_of(value.base)
        matrix, itemsize = self._rows.matrix(buffer.name), self._rows.dtype.itemsize
        address = matrix.address + (first + value.column) * itemsize
        return StepPlace(address, matrix.stride * itemsize * buffer.packed, matrix.stride)

    def forward(self, op: Op) -> StepProduct:
        """y = x Wᵀ, and b where no kernel adds it."""
        number, gemm = self._loop.maps[id(op)], self._gemm
        weight, bias = self._rows.matrix(f"V{number}"), self._rows.matrices[f"b{number}"]
        (x, x_row, x_stride), (y, y_row, y_stride) = map(self.place, (op.inputs[0], op.output))
        width, inner, at, stride = op.output.width, weight.width, weight.address, weight.stride

        def product(s: int, n: int) -> None:
            gemm(
                False, True, n, width, inner, x + s * x_row, x_stride, at, stride, 0,
                y + s * y_row, y_stride,
            )  # fmt: skip

        if bias is None or id(op.output) in self._loop.inline_maps:
            return product
        out, one = self._rows.whole(op.output), bias.array.reshape(-1)

        def with_bias(s: int, n: int) -> None:
            product(s, n)
            arrays.add_bias(out.part(s if y_row else 0, 0, width).view(n), one)

        return with_bias

    def backward(self, op: Op) -> StepProduct:
        """dx = dy W, added to the operator's second operand if it has one."""
        source, gemm = op.source, self._gemm
        assert source is not None
        weight = self._rows.matrix(f"V{self._loop.maps[id(source)]}")
        (dy, dy_row, dy_stride), *base = map(self.place, op.inputs)
        dx, dx_row, dx_stride = self.place(op.output)
        width, outer, at, stride = weight.width, source.output.width, weight.address, weight.stride
        beta = len(base)

        def product(s: int, n: int) -> None:
            gemm(
                False, False, n, width, outer, dy + s * dy_row, dy_stride, at, stride, beta,
                dx + s * dx_row, dx_stride,
            )  # fmt: skip

        if all([each.address == dx for each in base]):
            return product
        (start,), out = map(self._rows.whole, op.inputs[1:]), self._rows.whole(op.output)
        start_row = base[0].of_row

        def after_copy(s: int, n: int) -> None:
            given = start.part(s if start_row else 0, 0, width)
            arrays.copy(given.view(n), out.part(s if dx_row else 0, 0, width).view(n))
            product(s, n)

        return after_copy
