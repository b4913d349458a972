"""Loops of cells whose text the compiler prints: compiled here, in C and for a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dynbatch.backend import Array, DType
from dynbatch.kernels.c.runtime.arrays import address, row_stride
from dynbatch.kernels.c.runtime.library import Library, of_precisions
from dynbatch.kernels.cuda.runtime.source import CudaSource as CudaSource
from dynbatch.kernels.cuda.runtime.source import join as join
from dynbatch.kernels.runtime.precision import of_products
from dynbatch.kernels.runtime.tasks import NativeTask, task

_panels = of_precisions("blas.c")


class PrintedLoop:
    """The text of a loop in C, whose functions `forward` and `backward` run its steps."""

    def __init__(self, text: str) -> None:
        self._library = Library("cell", text)

    def functions(self, dtype: DType) -> LoopFunctions | None:
        """The loop for a dtype; None where C is not used."""
        panels = _panels[of_products()].functions(dtype)
        functions = self._library.functions(dtype)
        return None if panels is None or functions is None else LoopFunctions(functions, panels)


class LoopFunctions:
    """The functions of a loop in C for one dtype, forward (0) and backward (1).

    They find their arrays by `places`, two numbers for each.
    """

    def __init__(self, functions: Any, panels: Any) -> None:
        self._functions = functions.forward, functions.backward
        self._again: Any = getattr(functions, "again", None)
        self._panels = panels
        self._product = ctypes.cast(panels.panel_product, ctypes.c_void_p).value or 0

    def pack_weight(self, sizes: Sequence[int], rows: Array, panels: Array) -> NativeTask:
        """The task that packs a weight's rows into panels (N,), for products with rows."""
        return self._pack(self._panels.pack_weight, sizes, rows, panels)

    def pack_terms(self, sizes: Sequence[int], rows: Array, panels: Array) -> NativeTask:
        """The task that packs a weight's rows as some terms of products with gradients."""
        return self._pack(self._panels.pack_terms, sizes, rows, panels)

    def _pack(self, pack: Any, sizes: Sequence[int], rows: Array, panels: Array) -> NativeTask:
        arguments = (*sizes, address(rows), row_stride(rows), address(panels))
        return task(pack, arguments, rows, panels)

    def steps(
        self, way: int, places: Array, rows: Array, given: int, ahead: int, alive: Iterable[Any]
    ) -> NativeTask:
        """The task that runs steps forward or back.

        Args:
            rows:  (N, 4) int64 of each step, as the text reads them.
            ahead: rows of the maps of streams that it makes before.
            alive: what lies at the places, until the task has run.
        """
        arguments = (len(rows), address(rows), given, ahead, 0, address(places))
        return task(self._functions[way], (*arguments, self._product), places, rows, *alive)

    def bind(self, way: int, places: Array, given: int) -> Callable[[Array, int, int], None]:
        """A function that runs steps with the maps ahead of them, or a part of each."""
        function = self._functions[way]

        def run(rows: Array, ahead: int, part: int) -> None:
            function(len(rows), address(rows), given, ahead, part, address(places), self._product)

        return run

    def again(
        self, places: Sequence[Array], rows: Array, alive: Iterable[Any]
    ) -> NativeTask:  # fmt: skip
        """The task that runs steps forward and back, of a text that has `again`; see `steps`."""
        arguments = len(rows), address(rows), *[address(each) for each in places]
        return task(self._again, arguments, *places, rows, *alive)

    def entry(self, way: int) -> tuple[int, int]:
        """The address of forward or backward, and that of the function that it multiplies with."""
        run = ctypes.cast(self._functions[way], ctypes.c_void_p).value or 0
        return run, self._product


def location(array: Array) -> tuple[int, int]:
    """The numbers by which C finds an array: its address, and the elements from row to row."""
    return address(array) or 0, row_stride(array)
