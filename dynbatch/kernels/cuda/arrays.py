"""Launches of `arrays.cu`: filling, copying, repeating."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from dynbatch.backend import Array, device_of
from dynbatch.cupy_types import device_address
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.joined.chains import (
    ElementFunction,
    SingleLaunch,
    launch_function,
)
from dynbatch.kernels.cuda.joined.sums import sum_later, sum_parts
from dynbatch.kernels.cuda.move import copy_rectangles
from dynbatch.kernels.cuda.runtime.addresses import element_offsets
from dynbatch.kernels.cuda.runtime.in_flight import hold
from dynbatch.kernels.cuda.runtime.launch import THREADS, TILE
from dynbatch.kernels.cuda.runtime.matrices import row_stride
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import Queue, launch, queue
from dynbatch.kernels.cuda.walks import PART_OF_COLUMNS, over_elements
from dynbatch.kernels.expressions import BINARY
from dynbatch.kernels.segment import sum_segments
from dynbatch.ragged import offsets_of

ADDITION = ElementFunction("add", BINARY["add"].forward, ("a", "b"))


def fill(out: Array, number: float) -> None:
    _over_elements(out, "fill", (out, number))


def copy(x: Array, out: Array) -> None:
    """out = x, of out's shape or of its last dimensions.

    Either may be a slice of columns where the shapes are equal. Integers as large as out's elements
    are converted, if both arrays are contiguous.

    Raises:
        DtypeError: another dtype than out's.
        ShapeError: shapes or strides are not as described.
    """
    if x.shape != out.shape[max(0, out.ndim - x.ndim) :]:
        raise ShapeError(f"copy: an array {x.shape} into one {out.shape}")
    is_contiguous = x.flags.c_contiguous and out.flags.c_contiguous
    if x.dtype == f"i{out.itemsize}" and is_contiguous and x.size == out.size:
        _over_elements(out, "copy_integers", (x, out))
    elif x.dtype != out.dtype:
        raise DtypeError(f"copy: an array of {x.dtype} into one of {out.dtype}")
    elif x.size != out.size:
        _copy_rows(x, 0, out, x.size, x.size)
    elif is_contiguous:
        _over_elements(out, "copy", (x, out))
    else:
        _copy_rows(x, row_stride(x), out, row_stride(out), out.size // len(out))


def _copy_rows(x: Array, x_stride: int, out: Array, out_stride: int, width: int) -> None:
    if not x_stride and not (x.flags.c_contiguous and out.flags.c_contiguous):
        raise ShapeError("copy: only an array without gaps is repeated, into one without gaps")
    queue().keep(x, out)
    source, target = (device_address(x), x_stride), (device_address(out), out_stride)
    copy_rows(queue(), out.dtype, source, target, out.size // width if width else 0, width)


def copy_rows(
    queue: Queue, dtype: DTypeLike, source: tuple[int, int], target: tuple[int, int], rows: int,
    width: int,
) -> None:  # fmt: skip
    """target = source, for rows that may be parts of wider ones.

    Args:
        source, target: (address, elements from a row to the next); 0 repeats a row of the source.
    """
    count = rows * width
    args = (*source, *target, width, count)
    queue.launch(dtype, "copy_rows", (-(-count // TILE),), (THREADS,), args)


def accumulate(x: Array, out: Array) -> None:
    alone = SingleLaunch("accumulate", (-(-out.size // TILE),), (THREADS,), (x, out, out.size))
    launch_function(ADDITION, (out, x), out, alone)


def add_bias(rows: Array, bias: Array) -> None:
    args = (rows, bias, rows.shape[1], rows.size)
    alone = SingleLaunch("add_bias", (-(-rows.size // TILE),), (THREADS,), args)
    launch_function(ADDITION, (rows, bias), rows, alone)


def sum_rows(rows: Array, out: Array, later: bool = False) -> None:
    """out = Σ_n rows[n]: zeros of no rows."""
    if later and len(rows) > PART_OF_COLUMNS:
        sum_later(sum_parts(rows), out)
    else:
        sum_segments(rows, np.array([0, len(rows)]), out.reshape(1, -1))


def expand(x: Array, repeats: Array | None, out: Array) -> None:
    over_elements("expand", (x,), _offsets(len(x), repeats), out, x.shape[1] != out.shape[1])


def expand_backward(dy: Array, repeats: Array | None, out: Array) -> None:
    """The gradient of `expand`: sums over the repeated rows or columns, usually in one launch."""
    offsets, width = _offsets(len(out), repeats), dy.shape[1]
    if out.shape[1] != width:
        sum_segments(dy.reshape(-1, 1), offsets * width, out)
    elif repeats is None:
        copy(dy, out)
    else:
        sum_segments(dy, offsets, out)


def _offsets(count: int, repeats: Array | None) -> Array:
    return np.arange(count + 1) if repeats is None else offsets_of(repeats)


def transpose_segments(x: Array, shapes: Sequence[tuple[int, ...]], out: Array) -> None:
    """Transpose each segment, a (rows, columns) matrix, in one launch."""
    rows, columns = np.array(shapes, np.int64).reshape(-1, 2).T
    tiles, sizes = -(-rows // 32) * -(-columns // 32), rows * columns
    starts = np.cumsum(sizes) - sizes
    matrices = np.column_stack((np.cumsum(tiles) - tiles, starts, rows, columns))[tiles > 0]
    grid, block = (int(tiles.sum()),), (32, 8)
    launch(out, "transpose_segments", grid, block, (x, out, matrices, len(matrices)))


def upload(out: Array, arrays: Sequence[Array]) -> None:
    """out = the arrays, one after the other; host arrays are uploaded with the run's tables.

    Device arrays are copied in one launch, and kept alive until it is done.
    """
    ends = np.cumsum([array.size for array in arrays])
    of_host = np.array([isinstance(array, np.ndarray) for array in arrays])
    flat = [array.reshape(-1) for array in arrays]
    if of_host.any():
        table = np.concatenate([part for part in flat if isinstance(part, np.ndarray)])
        if of_host.all():
            _over_elements(out, "copy", (table, out))
            return
        sizes = [part.size for part in flat if isinstance(part, np.ndarray)]
        _copy_parts(table, np.cumsum(sizes) - sizes, out, (ends[of_host] - sizes), sizes)
    parts = [part for part in flat if not isinstance(part, np.ndarray)]
    _collect(parts, out, ends[~of_host])
    queue().call(partial(hold, queue().cupy, parts))


def collect(parts: Sequence[Array], out: Array) -> None:
    """out = the parts, one after the other, in one launch."""
    _collect(parts, out, np.cumsum([part.size for part in parts]))


def distribute(x: Array, outs: Sequence[Array]) -> None:
    """Fill arrays with the parts of a flat one, in order, in one launch."""
    sizes = np.array([out.size for out in outs], np.int64)
    targets = np.array(element_offsets(x, outs), np.int64)
    _copy_parts(x, np.cumsum(sizes) - sizes, x, targets, sizes)


def _collect(parts: Sequence[Array], out: Array, ends: Array) -> None:
    sizes = np.array([part.size for part in parts], np.int64)
    _copy_parts(out, np.array(element_offsets(out, parts), np.int64), out, ends - sizes, sizes)


def _copy_parts(
    source: Array, starts: Array, out: Array, targets: Array, sizes: Array | list[int]
) -> None:
    """Copy flat parts of `source` to their offsets in `out`; all counted in elements."""
    rectangles = np.zeros((len(sizes), 6), np.int64)
    rectangles[:, 0], rectangles[:, 2] = starts, targets
    rectangles[:, 4], rectangles[:, 5] = 1, sizes
    copy_rectangles(source, out, rectangles)


def download(array: Array) -> Array:
    """A copy on the host. It flushes the queue and waits for the device."""
    device_of(array).use()
    queue().flush()
    return array.get()  # type: ignore[attr-defined, no-any-return]  # CuPy's


def _over_elements(out: Array, name: str, args: tuple[Argument, ...]) -> None:
    launch(out, name, (-(-out.size // TILE),), (THREADS,), (*args, out.size))
