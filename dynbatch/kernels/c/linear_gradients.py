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
from dynbatch.kernels.c.runtime.library import of_precisions
from dynbatch.kernels.linear_gradients import MapGradient
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import of_products
from dynbatch.kernels.runtime.tasks import share

_libraries = of_precisions("linear_gradients.c")


def weight_gradients(xs: Sequence[Array], maps: Sequence[MapGradient], add: bool) -> Any:
    functions = _libraries[of_products()].functions(maps[0].dy.dtype)
    rows = len(maps[0].dy)
    arrays = [x for dy, bias, weights in maps for x in (dy, bias, *weights)]
    short = [x for x in xs if x.dtype == np.uint16]
    arrays += [x for x in xs if x.dtype != np.uint16]
    if functions is None or not (has_rows(*arrays) and all(map(has_rows, short))):
        return NotImplemented
    inputs, outputs, table = [], 0, []
    for x in xs:
        is_short = x.dtype == np.uint16
        inputs += [address(x) or 0, row_stride(x), x.shape[1], rows - len(x), is_short]
    for dy, bias, weights in maps:
        outputs += dy.shape[1]
        table += [address(dy) or 0, row_stride(dy), dy.shape[1], address(bias) or 0]
        for weight in weights:
            table += (0, 0) if weight is None else (address(weight) or 0, row_stride(weight))
    tables = np.array(inputs, np.int64), np.array(table, np.int64)
    rest = (rows, len(xs), address(tables[0]), len(maps), address(tables[1]), add)
    spans = _spans(outputs, rows * sum(inputs[2::5]))
    alive = [*xs, *[x for x in arrays if x is not None], *tables]
    share(functions.weight_gradients, [(*s, *rest) for s in spans], alive)
    return None


def scatter_products(
    products: Sequence[tuple[Array, Array, int]], start: Array | None, index: Array | None,
    out: Array, add: bool,
) -> Any:  # fmt: skip
    functions = _libraries[of_products()].functions(out.dtype)
    if functions is None or not has_rows(out, start, *[x for *pair, _ in products for x in pair]):
        return NotImplemented
    places, table = None if index is None else np.ascontiguousarray(index, np.int64), []
    for x, weight, column in products:
        table += [column, *weight.shape, address(x) or 0, row_stride(x)]
        table += [address(weight) or 0, row_stride(weight)]
    numbers = np.array(table, np.int64)
    base_row = 0 if start is None else row_stride(start)
    rest = (
        out.shape[1], address(places), address(start), base_row, address(out),
        row_stride(out), len(products), address(numbers), add,
    )  # fmt: skip
    rows = len(products[0][0] if start is None else start)
    spans = _spans(rows, sum([weight.size for _, weight, _ in products]))
    alive = (places, numbers, products, start, out)
    share(functions.scatter_products, [(*span, *rest) for span in spans], alive)
    return None


def _spans(count: int, work: int) -> list[tuple[int, int]]:
    """Ranges for threads, of what takes `work` multiply-adds each."""
    threads = max(1, min(parallel.available(), count * work // WORTH_A_THREAD))
    return [*itertools.pairwise([count * k // threads for k in range(threads + 1)])]
