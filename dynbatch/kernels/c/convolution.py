"""`kernels.convolution` in C: no patch is stored beyond a block that lies in the cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.blas import WORTH_A_THREAD
from dynbatch.kernels.c.images import patch_tables
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import of_precisions
from dynbatch.kernels.convolution import Sizes, padded
from dynbatch.kernels.images import Patches, swap_inner
from dynbatch.kernels.packed import panel_spans
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import of_products
from dynbatch.kernels.runtime.tasks import share, share_rows

_libraries = of_precisions("convolution.c")


class _Factor(NamedTuple):
    """A weight as a factor: terms of a position, columns, and strides in elements."""

    width: int
    columns: int
    position: int
    term: int
    column: int


def convolve(
    x: Array, patches: Patches, weight: Array, bias: Array | None, scratch: Array, out: Array,
    groups: int = 1,
) -> Any:  # fmt: skip
    sizes = Sizes.of(weight, patches)
    output, position, term = sizes.strides(weight)
    factor = _Factor(sizes.inputs, sizes.outputs, position, term, output)
    return _multiply(x, patches, weight, factor, bias, scratch, out, groups)


def convolve_backward(
    dy: Array, patches: Patches, weight: Array, scratch: Array, out: Array, groups: int = 1,
    bias: Array | None = None,
) -> Any:  # fmt: skip
    sizes = Sizes.of(weight, patches)
    output, position, term = sizes.strides(weight)
    factor = _Factor(sizes.outputs, sizes.inputs, position, output, term)
    return _multiply(dy, patches, weight, factor, bias, scratch, out, groups)


def _multiply(
    x: Array, patches: Patches, weight: Array, factor: _Factor, bias: Array | None,
    scratch: Array, out: Array, groups: int,
) -> Any:  # fmt: skip
    functions = _functions(x, patches, groups)
    if functions is None or not has_rows(x, out) or not is_packed(x[:0], weight, bias, scratch):
        return NotImplemented
    width, columns, *strides = factor
    terms = patches.positions * width
    panels = scratch[: terms * padded(columns)]
    rest = (patches.positions, width, columns, address(weight), *strides, address(panels))
    share(functions.pack_positions, [(*s, *rest) for s in _columns(columns, terms)])
    images, how = tables = patch_tables(patches)
    share_rows(
        functions.convolve, len(out), terms * columns, width, address(images), address(how),
        address(x), row_stride(x), columns, address(panels), address(bias), address(out),
        row_stride(out), least=WORTH_A_THREAD, alive=tables,
    )  # fmt: skip
    return None


def weight_gradient(
    x: Array, patches: Patches, dy: Array, scratch: Array, out: Array, groups: int = 1
) -> Any:
    functions = _functions(x, patches, groups)
    if functions is None or not has_rows(x, dy) or not is_packed(x[:0], scratch, out):
        return NotImplemented
    outputs, inputs, positions = Sizes.of(out, patches)
    terms, by_position = positions * inputs, out.ndim == 2
    totals = out if by_position else scratch[: out.size].reshape(outputs, terms)
    images, how = tables = patch_tables(patches)
    rest = (
        len(dy), inputs, address(images), address(how), address(x), row_stride(x), outputs,
        address(dy), row_stride(dy), address(totals), terms,
    )  # fmt: skip
    spans = _columns(terms, len(dy) * outputs)
    share(functions.sum_outer, [(*span, *rest) for span in spans], tables)
    if not by_position:
        swap_inner(totals.reshape(-1), (outputs, positions, inputs), out.reshape(-1))
    return None


def _functions(x: Array, patches: Patches, groups: int) -> Any:
    """None where no C is used, rows need no unfolding, or groups are unfolded together."""
    if groups > 1 or patches.are_rows or not isinstance(x, np.ndarray):
        return None
    return _libraries[of_products()].functions(x.dtype)


def _columns(count: int, work: int) -> list[tuple[int, int]]:
    """Ranges of whole panels for threads, of columns that take `work` multiply-adds each."""
    threads = max(1, min(parallel.available(), count * work // WORTH_A_THREAD))
    return panel_spans(count, threads)
