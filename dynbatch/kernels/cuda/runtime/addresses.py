"""Arrays of different allocations in one table, as offsets from one base array."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Array
from dynbatch.cupy_types import device_address
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.runtime.matrices import row_stride
from dynbatch.kernels.cuda.runtime.queue import queue


def element_offsets(base: Array, arrays: Sequence[Array]) -> list[int]:
    """Offsets of arrays, in elements from `base`; the arrays are kept alive until the flush.

    Args:
        base, arrays: device arrays of one dtype, each at a multiple of its size: CuPy and pools
            align what they give, and `dlpack.view` refuses others, so distances are whole numbers.

    Raises:
        ShapeError: an array is not C-contiguous.
    """
    queue().keep(base, *arrays)
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ShapeError(f"an array {array.shape} of {array.dtype} is not C-contiguous.")
    start, itemsize = device_address(base), base.itemsize
    return [(device_address(array) - start) // itemsize for array in arrays]


def row_address(array: Array | None) -> tuple[int | None, int]:
    """The address of rows that may be parts of wider ones, and elements from one to the next.

    NULL and 0 for no array. An array is kept alive until the flush.

    Raises:
        ShapeError: a row is not contiguous.
    """
    if array is None:
        return None, 0
    queue().keep(array)
    return device_address(array), row_stride(array)
