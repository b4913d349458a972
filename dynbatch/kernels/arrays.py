"""Fill, copy, repeat, and copies between host and device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.kernels.runtime.dispatch import ELEMENTS, HOST, kernel
from dynbatch.kernels.segment import blocks, rows_of, sum_segments
from dynbatch.ragged import offsets_of


@kernel(c=HOST, cuda=HOST)
def fill(out: Array, number: float) -> None:
    """out = number, everywhere."""
    out[...] = number


@kernel(cuda=HOST)
def copy(x: Array, out: Array) -> None:
    """out = x, converted to out's type where it differs.

    Args:
        x:   of out's shape, or of one that repeats to it along leading dimensions.
    """
    np.copyto(out, x, casting="same_kind")


@kernel(cuda=HOST)
def accumulate(x: Array, out: Array) -> None:
    """out += x, of equal shapes."""
    np.add(out, x, out=out)


@kernel(cuda=HOST)
def add_bias(rows: Array, bias: Array) -> None:
    """rows[n] += bias for every row, in place.

    Args:
        bias: (D,).
    """
    np.add(rows, bias, out=rows)


@kernel(c=HOST, cuda=HOST)
def sum_rows(rows: Array, out: Array, later: bool = False) -> None:
    """out = Σ_n rows[n]: zeros of no rows.

    Args:
        out:   (D,), overwritten.
        later: on a GPU `out` may be written with others, when the queue is settled.
    """
    np.sum(rows, axis=0, out=out)


@kernel(cuda=ELEMENTS)
def scale_segments(x: Array, numbers: Array, offsets: Array, out: Array) -> None:
    """out_i = numbers[k] · x_i for the elements i of segment k.

    Args:
        out: (N,), overwritten; may be `x`.
    """
    _with_numbers(np.multiply, x, numbers, offsets, out)


@kernel(cuda=ELEMENTS)
def shift_segments(x: Array, numbers: Array, offsets: Array, out: Array) -> None:
    """out_i = x_i + numbers[k] for the elements i of segment k; as `scale_segments`."""
    _with_numbers(np.add, x, numbers, offsets, out)


def _with_numbers(ufunc: np.ufunc, x: Array, numbers: Array, offsets: Array, out: Array) -> None:
    """out_i = ufunc(x_i, numbers[k]), at once if all segments share the number."""
    numbers = numbers.astype(x.dtype, copy=False)
    if (numbers == numbers[0]).all():
        ufunc(x, numbers[0], out=out)
        return
    for part in blocks(x.size, 1):
        ufunc(x[part], rows_of(numbers, offsets, part), out=out[part])


@kernel(cuda=HOST)
def expand(x: Array, repeats: Array | None, out: Array) -> None:
    """out = the rows of x, row n repeats[n] times; a single column fills all of out's columns.

    Args:
        x:       (M, D) or (M, 1).
        repeats: (M,) of the host, summing to N; None for once each.
    """
    if repeats is None:
        np.copyto(out, x)
        return
    offsets = offsets_of(repeats)
    for part in blocks(*out.shape):
        np.copyto(out[part], rows_of(x, offsets, part))


@kernel(cuda=HOST)
def expand_backward(dy: Array, repeats: Array | None, out: Array) -> None:
    """The gradient of `expand`: sums over what was repeated.

    Args:
        out: (M, D) or (M, 1), overwritten.
    """
    rows = dy
    if out.shape[1] != dy.shape[1]:
        rows = dy.sum(axis=1, keepdims=True)
    if repeats is None:
        np.copyto(out, rows)
    else:
        sum_segments(rows, offsets_of(repeats), out)


@kernel(cuda=HOST)
def transpose_segments(x: Array, shapes: Sequence[tuple[int, ...]], out: Array) -> None:
    """Transpose each segment, a (rows, columns) matrix.

    Args:
        shapes: of the segments in x.
    """
    # Sentences differ in both strides, and NumPy has no copy for that: one call each.
    start = 0
    for rows, columns in shapes:
        end = start + rows * columns
        into = out[start:end].reshape(columns, rows)
        np.copyto(into, x[start:end].reshape(rows, columns).T)
        start = end


def concatenate(parts: Sequence[Array], out: Array | None = None) -> Array:
    """Rows of several matrices of one width, one after the other.

    Args:
        out: where they go, of as many rows; None for an array of their own.
    """
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts, out=out)
    whole = out
    if whole is None:
        rows = sum([len(part) for part in parts])
        whole = device_of(first).xp.empty((rows, first.shape[1]), first.dtype)
    start = 0
    for part in parts:
        copy(part, whole[start : start + len(part)])
        start += len(part)
    return whole


@kernel(cuda=HOST)
def upload(out: Array, arrays: Sequence[Array]) -> None:
    """out = the arrays, one after the other.

    Args:
        arrays: contiguous, of the host or of a GPU.
    """
    parts = [array if isinstance(array, np.ndarray) else download(array) for array in arrays]
    np.concatenate([part.reshape(-1) for part in parts], out=out)


def snapshot(array: Array) -> Array:
    """A copy of the array on its own device; the host does not wait."""
    if isinstance(array, np.ndarray):
        return array.copy()
    out: Array = device_of(array).xp.empty(array.shape, array.dtype)
    copy(array, out)
    return out


def snapshots(arrays: Sequence[Array]) -> list[Array]:
    """Copies of several contiguous arrays, in one launch on a GPU; the host does not wait."""
    if not arrays or isinstance(arrays[0], np.ndarray):
        return [array.copy() for array in arrays]
    return split(pack(arrays), [array.shape for array in arrays])


def pack(arrays: Sequence[Array]) -> Array:
    """One or more contiguous arrays as one flat array on their device."""
    size = sum([array.size for array in arrays])
    whole: Array = device_of(arrays[0]).xp.empty(size, arrays[0].dtype)
    collect([array.reshape(-1) for array in arrays], whole)
    return whole


def split(whole: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Undo `pack`: views of the flat array in these shapes."""
    parts = []
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        parts.append(whole[start:end].reshape(shape))
        start = end
    return parts


@kernel(1, cuda=HOST)
def collect(parts: Sequence[Array], out: Array) -> None:
    """out = the parts, one after the other.

    Args:
        parts: flat arrays on the device of `out`.
    """
    np.concatenate(parts, out=out)


@kernel(cuda=HOST)
def distribute(x: Array, outs: Sequence[Array]) -> None:
    """Fill arrays with the parts of a flat one, in order: undoes `collect`.

    Args:
        x:    (N,).
        outs: of its dtype and device and any shapes, N elements together; on a GPU contiguous.
    """
    for out, part in zip(outs, split(x, [out.shape for out in outs]), strict=True):
        np.copyto(out, part)


@kernel(cuda=HOST)
def download(array: Array) -> Array:
    """A copy on the host; on a GPU it waits for all that the array depends on."""
    return array.copy()
