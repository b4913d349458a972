"""`NativeLoop`: a program's loop in C, compiled when it is first run and kept."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from dynbatch.backend import DType
from dynbatch.compiler.arrays import panel_elements, panel_portions
from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.c.expressions import lacks
from dynbatch.compiler.c.forward import ForwardText
from dynbatch.compiler.ir import Op
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.kernels.c.runtime.arrays import address, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.parameter import Array

Step = tuple[int, int, int, int]

# Elements of a loop's weights: a smaller one has run before it is compiled.
WORTH_COMPILING = 1024

_panels = Library("panels.c")


class NativeLoop:
    """A loop in C.

    Attributes:
        lacks: functions and operators of the loop that C has no version of: then NumPy runs it.
    """

    def __init__(self, program: LoopProgram, storage: Storage) -> None:
        self._program = program
        self._storage = storage
        self.lacks = sorted({lacks(op) for op in program.ops} - {""})
        weights = [op.inputs[0].width * op.output.width for op in program.linear_maps]
        self._weights = sum(weights)

    def functions(self, dtype: DType) -> NativeFunctions | None:
        """The loop's functions for a dtype; None where NumPy runs it."""
        if self.lacks or self._weights < WORTH_COMPILING:
            return None
        panels, functions = _panels.functions(dtype), self._library.functions(dtype)
        if panels is None or functions is None:
            return None
        return NativeFunctions(functions, panels, self.forward.slots)

    @cached_property
    def forward(self) -> ForwardText:
        """The source."""
        return ForwardText(self._program, self._storage)

    @cached_property
    def _library(self) -> Library:
        return Library("cell", self.forward.text)


class NativeFunctions:
    """The compiled functions of a loop for one dtype."""

    def __init__(self, functions: Any, panels: Any, slots: Sequence[str]) -> None:
        self._forward = functions.forward
        self._pack = panels.pack_weight
        self._product = ctypes.cast(panels.panel_product, ctypes.c_void_p).value
        self._slots = slots

    def pack(self, op: Op, plane: int, panels: Array) -> None:
        """Pack the weights of a wide map into panels (N,), for products with rows."""
        start = 0
        tasks = []
        for _, width, piece, first in panel_portions(op, plane):
            weight = piece.weight.value
            stop = start + panel_elements(op.inputs[0].width, width, panels.dtype)
            tasks.append(
                partial(
                    self._pack, weight.shape[1], width, address(weight[first:]),
                    row_stride(weight), address(panels[start:stop]),
                )
            )  # fmt: skip
            start = stop
        parallel.run(tasks)

    def table(self, arrays: dict[str, Any]) -> Array:
        """Addresses and strides of arrays by name, which must live on.

        Args:
            arrays: as for `CompiledLoop.forward`, with weights as `pack` leaves them.
        """
        table: list[int] = []
        for name in self._slots:
            array = arrays[name]
            is_packed = isinstance(array, np.ndarray)
            table += [address(array) or 0, row_stride(array)] if is_packed else [0, 0]
        return np.array(table, np.int64)

    def forward(self, table: Array, steps: Sequence[Step], given: bool, ahead: bool) -> None:
        """Run some steps of one shard.

        Args:
            steps: (first row, end row, rows, first row of the step before or -1) of each.
            given: whether the initial state may be other than zeros.
            ahead: whether to make the maps of streams too, from the first row to the last end row.
        """
        rows = np.array(steps, np.int64)
        self._forward(len(steps), address(rows), given, ahead, address(table), self._product)
