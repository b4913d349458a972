"""`LockStep`: items of a loop's steps for several runs of one program at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.rows import LoopRows, RowsOfSteps
from dynbatch.compiler.buffers import Role, array_name
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.emit import Arrays, Kernel
from dynbatch.compiler.ir import Op, Value
from dynbatch.kernels.runtime.device_loops import PerStep, PreparedLoop


class LockStep:
    """Steps of a loop, in which several runs go side by side: one launch or product for all.

    The addresses of all steps are computed at once.

    Args:
        cell:  whose kernels they are.
        runs:  their rows, with equal tables.
        order: numbers of the steps, in the order in which they run.

    Attributes:
        steps: what the queue takes once all items are added.
    """

    def __init__(self, cell: DeviceCell, runs: Sequence[LoopRows], order: Array) -> None:
        first = runs[0]
        self._cell = cell
        self._runs = runs
        self._order = order
        self._table = first.table
        self._count = self._table[order, 1].astype(np.int64)
        self.steps = PreparedLoop(first.queue, first.dtype, order.size)

    def kernel(self, kernel: Kernel, where: Array) -> None:
        """Add a generated kernel, in the steps that `where` says."""
        grid = (kernel.grid(self._count), len(self._runs))
        name = f"{self._cell.name}_{kernel.name}"
        pointers = arguments(kernel.arrays, self._runs, self._order)
        args = [*pointers, self._table, PerStep(self._order)]
        self.steps.kernel(name, grid, (kernel.block,), args, where=where)

    def map(self, ops: Sequence[Op], where: Array) -> None:
        """Add y = x W (+ b), an operator of each run; a state that is all zeros gives zeros."""
        loop, first = self._runs[0].loop, ops[0]
        width, inner = first.output.width, first.inputs[0].width
        x = self._of([op.inputs[0] for op in ops])
        out = self._of([op.output for op in ops])
        is_multiplied = where & (x[0].addresses != 0) & (inner > 0)
        self._product((False, True), width, inner, x, self._weights(ops), 0, out, is_multiplied)
        for each in out:
            self.steps.zero_rows(*each, width, self._count, where & ~is_multiplied)
        if not first.has_bias or id(first.output) in loop.inline_maps:
            return
        for run, op, each in zip(self._runs, ops, out, strict=True):
            assert each.stride == width, "a map's rows are whole rows of their buffer"
            bias = run.matrix(array_name(Role.BIAS, run.loop.maps[id(op)]))
            self.steps.add_bias(each.addresses, bias.address, width, self._count, where)

    def map_gradient(self, ops: Sequence[Op], where: Array) -> None:
        """Add dx = dy W, added to the operator's second operand if it has one."""
        sources = [op.source for op in ops if op.source is not None]
        dy, *base = [self._of(values) for values in zip(*[op.inputs for op in ops], strict=True)]
        out, width = self._of([op.output for op in ops]), ops[0].output.width
        for added in base:
            for x, y in zip(added, out, strict=True):
                apart = where & (x.addresses != y.addresses)
                self.steps.copy_rows(*x, *y, width, self._count, apart)
        inner, weights = sources[0].output.width, self._weights(sources)
        self._product((False, False), width, inner, dy, weights, len(base), out, where)

    def _of(self, values: Sequence[Value]) -> list[RowsOfSteps]:
        pairs = zip(self._runs, values, strict=True)
        return [run.of_steps(value, self._order) for run, value in pairs]

    def _weights(self, ops: Sequence[Op]) -> list[RowsOfSteps]:
        names = [(run, array_name(Role.WEIGHT, run.loop.maps[id(op)]))
                 for run, op in zip(self._runs, ops, strict=True)]  # fmt: skip
        every = np.zeros(self._order.size, np.int64)
        weights = [run.matrix(name) for run, name in names]
        return [RowsOfSteps(every + weight.address, weight.stride) for weight in weights]

    def _product(
        self, transposes: tuple[bool, bool], n: int, k: int, a: Sequence[RowsOfSteps],
        b: Sequence[RowsOfSteps], beta: int, c: Sequence[RowsOfSteps], where: Array,
    ) -> None:  # fmt: skip
        (x, lda), (y, ldb), (z, ldc) = a[0], b[0], c[0]
        shape = (*transposes, self._count, n, k)
        if len(self._runs) == 1:
            self.steps.product(*shape, x, lda, y, ldb, beta, z, ldc, where)
            return
        x, y, z = [np.stack([each.addresses for each in rows], axis=1) for rows in (a, b, c)]
        self.steps.products(*shape, x, lda, y, ldb, beta, z, ldc, where)


def arguments(arrays: Arrays, runs: Sequence[LoopRows], order: Array | None = None) -> list[Any]:
    """The arguments of a kernel for its arrays: those of the first run, and how far others are."""
    first, *others = [[run.base_of(name, order) for name in arrays.names] for run in runs]
    args = [PerStep(base) if isinstance(base, np.ndarray) else base for base in first]
    itemsize, pairs = runs[0].dtype.itemsize, [zip(first, each, strict=True) for each in others]
    away = [[_distance(*pair, itemsize) for pair in each] for each in pairs]
    return [*args, np.array(away, np.int64) if away else None]


def _distance(start: int | Array | None, end: int | Array | None, itemsize: int) -> int:
    if start is None or end is None:
        return 0
    distance = end - start
    if isinstance(distance, np.ndarray):
        assert (distance == distance[0]).all(), "arrays of runs in lock step lie alike"
        distance = int(distance[0])
    return distance // itemsize
