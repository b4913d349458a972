"""Maximum, minimum and the position of the maximum."""

from __future__ import annotations

from typing import ClassVar, Never

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import arrays
from dynbatch.kernels import reduce as kernels
from dynbatch.kernels.segment import reduce_segments
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.reduce import Dims, Reduction, reduced
from dynbatch.nodes.shape.axes import segments
from dynbatch.ragged import Ragged


class Extremum(Reduction):
    """Base of the largest and the smallest element; the gradient goes to its first occurrence.

    Keeps:  the position of each extremum, as large as the output; the input is free after forward.
    """

    __slots__ = ()
    any_length = True
    needs_tokens = True
    largest: ClassVar[bool]

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        if batch.has_one_width:
            return {"first": (batch.rows, batch.first.width)}
        return {"first": (batch.elements, 1)}

    @classmethod
    def first(cls, batch: Batch) -> Array:
        """The saved positions: integers in the memory of floats."""
        saved = batch.saved["first"]
        return saved.view(f"i{saved.itemsize}")

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        x, offsets = segments(xs[0], batch.first.over)
        reduce_segments(np.maximum if cls.largest else np.minimum, x, offsets, y.table, 0)
        if batch.keeps:
            kernels.first_extremum(cls.largest, x, y.table, offsets, cls.first(batch))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            dx, offsets = segments(dxs[0], batch.first.over)
            kernels.extremum_backward(dy.table, cls.first(batch), offsets, dx)


class Max(Extremum):
    """y = max_i x_i."""

    __slots__ = ()
    largest = True


class Min(Extremum):
    """y = min_i x_i."""

    __slots__ = ()
    largest = False


class ArgMax(Reduction):
    """y = the number of the first largest element, as a float. It has no gradient.

    Exact below 2^24 elements in float32.
    """

    __slots__ = ()
    exact = True
    any_length = True
    differentiable = False
    needs_tokens = True

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        x, offsets = segments(xs[0], batch.first.over)
        reduce_segments(np.maximum, x, offsets, y.table, 0)
        first = batch.xp.empty(y.table.shape, f"i{batch.dtype.itemsize}")
        kernels.first_extremum(True, x, y.table, offsets, first)
        arrays.copy(first, y.table)


def max(x: Node, dim: Dims = None, **habits: Never) -> Node:
    """Maximum over tokens (`dim=0`), over features (`dim=-1`), or of everything.

    The gradient goes to the first maximum, as in PyTorch for a given dim.

    Raises:
        ShapeError: x has no such dim, or no tokens to choose from.
    """
    return reduced("max", Max, x, dim, habits)


def min(x: Node, dim: Dims = None, **habits: Never) -> Node:
    """Minimum over tokens (`dim=0`), over features (`dim=-1`), or of everything.

    The gradient goes to the first minimum, as in PyTorch for a given dim.

    Raises:
        ShapeError: x has no such dim, or no tokens to choose from.
    """
    return reduced("min", Min, x, dim, habits)


def argmax(x: Node, dim: Dims = None, **habits: Never) -> Node:
    """Number of the first maximum over tokens (`dim=0`), features (`dim=-1`), or all elements.

    Its numbers are floats, as those of any node: `ids = F.argmax(scores).value.astype(int)`.

    Raises:
        ShapeError: x has no such dim, or no tokens to choose from.
    """
    return reduced("argmax", ArgMax, x, dim, habits)
