"""Launches of `windows.cu`: windows that slide over segments."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.walks import over_elements, segment_table
from dynbatch.kernels.windows import WindowTable


def unfold(x: Array, windows: WindowTable, out: Array) -> None:
    _forward("unfold", (x,), windows, out)


def unfold_backward(dy: Array, windows: WindowTable, out: Array) -> None:
    _backward("unfold_backward", (dy,), windows, out)


def max_pool(x: Array, windows: WindowTable, out: Array, argmax: Array) -> None:
    """out[m] = maximum of the rows of window m, column by column, and where in it that is."""
    _forward("max_pool", (x, argmax), windows, out)


def max_pool_backward(dy: Array, windows: WindowTable, argmax: Array, out: Array) -> None:
    _backward("max_pool_backward", (dy, argmax), windows, out)


def mean_pool(x: Array, windows: WindowTable, out: Array) -> None:
    _forward("mean_pool", (x,), windows, out)


def mean_pool_backward(dy: Array, windows: WindowTable, out: Array) -> None:
    _backward("mean_pool_backward", (dy,), windows, out)


def _forward(name: str, arrays: tuple[Argument, ...], windows: WindowTable, out: Array) -> None:
    rows, ends, *how = windows
    over_elements(name, arrays, ends, out, *segment_table(rows), *how)


def _backward(name: str, arrays: tuple[Argument, ...], windows: WindowTable, out: Array) -> None:
    rows, ends, *how = windows
    over_elements(name, arrays, rows, out, *segment_table(ends), *how)
