"""`kernels.gated` in C."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.printed import gates
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import WORTH_A_THREAD, share, share_rows
from dynbatch.kernels.unary import Argument, Function

_library = Library("gated.c")
_FUNCTIONS = tuple(gates())


def gated(
    function: Function, arguments: tuple[Argument, ...], xs: tuple[Array, ...],
    value_first: bool, out: Array,
) -> Any:  # fmt: skip
    arrays = (*_sides(xs, value_first), (out, 0))
    return _run("", function, arguments, out, len(xs) == 1, *arrays)


def gated_backward(
    function: Function, arguments: tuple[Argument, ...], dy: Array,
    xs: tuple[Array, ...], value_first: bool, dxs: tuple[Array | None, ...],
) -> Any:  # fmt: skip
    arrays = ((dy, 0), *_sides(xs, value_first), *_sides(dxs, value_first))
    return _run("_backward", function, arguments, dy, len(xs) == 1, *arrays)


def _sides(arrays: tuple[Array | None, ...], value_first: bool) -> list[tuple[Array | None, int]]:
    """The arrays of gate and value, and the byte of a row where each begins."""
    if len(arrays) == 2:
        return [(array, 0) for array in arrays]
    (both,) = arrays
    assert both is not None
    half = both.shape[1] // 2 * both.itemsize
    return [(both, half), (both, 0)] if value_first else [(both, 0), (both, half)]


def _run(
    way: str, function: Function, arguments: tuple[Argument, ...], like: Array,
    are_halves: bool, *arrays: tuple[Array | None, int],
) -> Any:  # fmt: skip
    """Run over the elements of `like`; rows of halves are twice as long as its own."""
    functions = _library.functions(like.dtype)
    chosen, _ = function.chosen(arguments)
    packed = is_packed(like, *[array for array, _ in arrays])
    if functions is None or chosen not in _FUNCTIONS or not packed:
        return NotImplemented
    run = getattr(functions, f"gated_{chosen.name}{way}")
    places = [None if array is None else (address(array) or 0) + at for array, at in arrays]
    if are_halves:
        width = like.shape[1]
        share_rows(run, like.shape[0], width, width, 2 * width, *places)
        return None

    parts = []
    for first, last in parallel.shards(like.size, WORTH_A_THREAD):  # each as one long row
        start = first * like.itemsize
        addresses = [None if base is None else base + start for base in places]
        parts.append((0, 1, last - first, 0, *addresses))
    share(run, parts)
    return None
