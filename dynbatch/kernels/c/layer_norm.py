"""`kernels.layer_norm` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.layer_norm import Normals
from dynbatch.kernels.runtime.tasks import share, share_rows
from dynbatch.kernels.segment import blocks

_library = Library("layer_norm.c")


def layer_norm_backward(
    dy: Array, normals: Normals, weight: Array | None, rstd: Array, is_centred: bool, out: Array,
    add: bool = False,
) -> Any:  # fmt: skip
    functions = _library.functions(dy.dtype)
    if functions is None or add or not (has_rows(rstd, dy, out) and is_packed(rstd, weight)):
        return NotImplemented
    arguments = _arguments(normals, dy)
    if arguments is None:
        return NotImplemented
    share_rows(
        functions.layer_norm_backward, *dy.shape, dy.shape[1], *arguments, address(weight),
        address(rstd), is_centred, address(out), row_stride(out), alive=_own(normals),
    )  # fmt: skip
    return None


def layer_norm_parameters(
    dy: Array, normals: Normals, dweight: Array | None, dbias: Array | None, later: bool = False
) -> Any:
    functions, width = _library.functions(dy.dtype), dy.shape[1]
    if functions is None or not (has_rows(dy) and is_packed(dy[:0], dweight, dbias)):
        return NotImplemented
    arguments = _arguments(normals, dy)
    if arguments is None:
        return NotImplemented
    parts = [(part.start, part.stop) for part in blocks(*dy.shape)]
    if len(parts) == 1:
        places = address(dweight), address(dbias)
        part = *parts[0], width, *arguments, *places
        share(functions.sum_parameters, [part], _own(normals))
        return None
    sums = np.empty((len(parts), 2, width), dy.dtype)
    wanted = [(k, array) for k, array in enumerate((dweight, dbias)) if array is not None]
    addresses_of: list[list[int | None]] = [[None, None] for _ in parts]
    for k, _ in wanted:
        for two, of_part in zip(addresses_of, sums, strict=True):
            two[k] = address(of_part[k])
    each = zip(parts, addresses_of, strict=True)
    rows = [(*part, width, *arguments, *two) for part, two in each]
    share(functions.sum_parameters, rows, [sums, *_own(normals)])
    sizes = len(parts), 2 * width, width
    totals = [(*sizes, address(sums[:, k]), address(array)) for k, array in wanted]
    share(functions.add_rows, totals, [sums])
    return None


def _own(normals: Normals) -> list[Array]:
    """The arrays that are made for a call."""
    return [array for array in (normals.factor, *(normals.lost or ())) if array is not None]


def _arguments(normals: Normals, dy: Array) -> list[int | None] | None:
    """The arguments of C for the normals, then dy; None where it does not take them."""
    rows, shift, factor = normals.rows, normals.shift, normals.factor
    columns, values = normals.lost or (None, None)
    if not (has_rows(dy, rows) and is_packed(dy[:0], shift, factor, values)):
        return None
    of_rows = any([array is not None and array.ndim == 2 for array in (shift, factor)])
    count = 0 if columns is None else columns.size
    return [
        address(rows), row_stride(rows), address(shift), address(factor), of_rows,
        count, address(columns), address(values), address(dy), row_stride(dy),
    ]  # fmt: skip
