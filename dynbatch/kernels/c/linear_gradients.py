"""`kernels.linear_gradients` in C: what several products read is packed once for all of them.

A sum over all rows has the same bits for any number of threads, a row in any company.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.blas import WORTH_A_THREAD
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.sharing import share, share_rows
from dynbatch.kernels.linear_gradients import MapGradient
from dynbatch.kernels.runtime import parallel

_library = Library("linear_gradients.c")


def weight_gradients(xs: Sequence[Array], maps: Sequence[MapGradient], add: bool) -> Any:
    functions, rows = _library.functions(xs[0].dtype), len(maps[0].dy)
    arrays = [x for dy, bias, weights in maps for x in (dy, bias, *weights)]
    if functions is None or not has_rows(*xs, *arrays) or not all([x.size for x in xs]):
        return NotImplemented
    inputs = np.array(
        [(address(x), row_stride(x), x.shape[1], rows - len(x)) for x in xs], np.int64
    )
    outputs, table = 0, []
    for dy, bias, weights in maps:
        outputs += dy.shape[1]
        table += [address(dy), row_stride(dy), dy.shape[1], address(bias) or 0]
        for weight in weights:
            table += (0, 0) if weight is None else (address(weight), row_stride(weight))
    gradients = np.array(table, np.int64)
    count = rows * outputs * int(inputs[:, 2].sum()) // WORTH_A_THREAD
    count = max(1, min(parallel.available(), count))
    edges = [outputs * k // count for k in range(count + 1)]
    rest = (rows, len(xs), address(inputs), len(maps), address(gradients), add)
    share(functions.weight_gradients, [(*span, *rest) for span in itertools.pairwise(edges)])
    return None


def scatter_products(a: Array, b: Array, index: Array | None, out: Array, add: bool) -> Any:
    functions, size = _library.functions(out.dtype), out.itemsize
    if functions is None or not has_rows(a[0], b[0], out):
        return NotImplemented
    (planes, rows, inner), columns = a.shape, b.shape[2]
    index = None if index is None else np.ascontiguousarray(index, np.int64)
    share_rows(
        functions.scatter_products, rows, planes * inner * columns, planes, inner, columns,
        address(a), a.strides[0] // size, a.strides[1] // size,
        address(b), b.strides[0] // size, b.strides[1] // size,
        address(index), address(out), row_stride(out), add, least=WORTH_A_THREAD,
    )  # fmt: skip
    return None
