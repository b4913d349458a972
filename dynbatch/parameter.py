"""Parameters and their gradients: the arrays that outlive every graph."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynbatch.backend import device_of
from dynbatch.errors import DtypeError, ShapeError

Array = np.ndarray[Any, np.dtype[Any]]

_uids = itertools.count()

UNNAMED = "parameter"
"""What a parameter is called until it becomes an attribute of a module."""


@dataclass(frozen=True, slots=True)
class RowSparse:
    """A gradient in which only some rows of a matrix are non-zero.

    Args:
        rows:   (K,) int64, strictly increasing.
        values: (K, width), the rows' gradients.
        shape:  shape of the whole matrix, (num_rows, width).
    """

    rows: Array
    values: Array
    shape: tuple[int, int]

    def dense(self) -> Array:
        """The same gradient as one (num_rows, width) array."""
        full = np.zeros(self.shape, self.values.dtype)
        full[self.rows] = self.values
        return full

    def __add__(self, other: RowSparse) -> RowSparse:
        rows = np.union1d(self.rows, other.rows)
        values = np.zeros((rows.size, self.shape[1]), self.values.dtype)
        values[np.searchsorted(rows, self.rows)] += self.values
        values[np.searchsorted(rows, other.rows)] += other.values
        return RowSparse(rows, values, self.shape)


Gradient = Array | RowSparse


class Parameter:
    """A trainable array, shared by every graph that uses it.

    Args:
        value: 1- or 2-dimensional float32 or float64 array; kept, not copied, when C-contiguous.
        name:  what errors and checkpoints call it; `models.Module` fills it in.

    `grad` is None, a dense array of the parameter's shape, or `RowSparse` (tables read by
    `nodes.lookup`). `graph.backward` adds to it; `optimizer.step()` uses and then clears it.
    A `frozen` parameter receives no gradient.

    Raises:
        DtypeError: `value` is not float32 or float64.
        ShapeError: `value` has neither one nor two dimensions.
    """

    __slots__ = ("__weakref__", "_buffer", "frozen", "grad", "name", "uid", "value")

    def __init__(self, value: Any, name: str = UNNAMED) -> None:
        array = np.ascontiguousarray(value)
        if array.dtype not in (np.float32, np.float64):
            raise DtypeError(f"Parameter {name!r}: float32 or float64 expected, got {array.dtype}.")
        if array.ndim not in (1, 2):
            raise ShapeError(f"Parameter {name!r}: 1 or 2 dimensions expected, got {array.shape}.")
        self.value: Array = array
        self.grad: Gradient | None = None
        self.name = name
        self.frozen = False
        self.uid = next(_uids)
        self._buffer: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("value", "grad", "name", "frozen")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is a parameter of its own: nodes of two parameters must not share a kernel."""
        for name, value in state.items():
            setattr(self, name, value)
        self.uid = next(_uids)
        self._buffer = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.value.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def nbytes(self) -> int:
        return self.value.nbytes

    def zero_grad(self) -> None:
        """Forget the gradient. Its memory stays with the parameter for the next backward."""
        self.grad = None

    def gradient_buffer(self) -> Array:
        """An uninitialised array of the parameter's shape, reused from step to step."""
        buffer, value = self._buffer, self.value
        if buffer is None or buffer.dtype != value.dtype or type(buffer) is not type(value):
            self._buffer = self.empty_like()
        return self._buffer  # type: ignore[return-value]

    def empty_like(self) -> Array:
        """An uninitialised array of the parameter's shape, dtype and device."""
        return device_of(self.value).xp.empty(self.shape, self.dtype)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        frozen = ", frozen" if self.frozen else ""
        return f"Parameter({self.name!r}, {self.dtype}{self.shape}{frozen})"
