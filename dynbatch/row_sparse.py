"""`RowSparse`: a gradient in which only some rows of a matrix are non-zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from dynbatch import backend
from dynbatch.backend import Array, Device, device_of
from dynbatch.kernels.choosing.results import start_kernels
from dynbatch.kernels.rows import add_rows, scatter_rows
from dynbatch.kernels.runtime import transfer

NUMBER_BYTES = 8
"""Bytes of a row's number."""


@dataclass(frozen=True, slots=True)
class RowSparse:
    """A gradient in which only some rows of a matrix are non-zero.

    Args:
        rows:   (K,) int64, strictly increasing; on the host.
        values: (K, width), the rows' gradients; where the matrix is.
        shape:  shape of the whole matrix, (num_rows, width).
    """

    rows: Array
    values: Array
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes where the matrix is: on a GPU, those of the values."""
        return int(self.values.nbytes) + self.rows.nbytes * isinstance(self.values, np.ndarray)

    def dense(self, starts: bool = True) -> Array:
        """The gradient as one (num_rows, width) array.

        Args:
            starts: on a GPU, start the kernels that fill it, so that CuPy and others may read it;
                else only dynbatch's own kernels may.
        """
        full = _empty(self.values, self.shape)
        scatter_rows(self.values, self.rows, full)
        if starts:
            start_kernels(full)
        return full

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """`np.asarray(gradient)` is `dense()`, on the host."""
        return np.asarray(transfer.to_host(self.dense()), dtype)

    def to(self, device: str | Device) -> RowSparse:
        """The gradient on a device."""
        return replace(self, values=transfer.to_device(self.values, backend.device(device)))

    def __add__(self, other: RowSparse) -> RowSparse:
        total = self.plus(other)
        start_kernels(total.values)
        return total

    def plus(self, other: RowSparse) -> RowSparse:
        """The sum; on a GPU, for dynbatch's own kernels: those that fill it may wait."""
        rows = np.union1d(self.rows, other.rows)
        values = _empty(self.values, (rows.size, self.shape[1]))
        scatter_rows(self.values, np.searchsorted(rows, self.rows), values)
        add_rows(other.values, np.searchsorted(rows, other.rows), values)
        return RowSparse(rows, values, self.shape)


def _empty(like: Array, shape: tuple[int, ...]) -> Array:
    array: Array = device_of(like).xp.empty(shape, like.dtype)
    return array


Gradient = Array | RowSparse


def moved_gradient(grad: Gradient | None, device: Device) -> Gradient | None:
    """A parameter's gradient, if it has one, on a device."""
    if grad is None or isinstance(grad, RowSparse):
        return grad and grad.to(device)
    moved: Array = transfer.to_device(grad, device)
    return moved
