"""Dimensions in another order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.rows import gather_rows
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape
from dynbatch.nodes.operation import INDEX_BYTES, Operation
from dynbatch.nodes.shape.gather import Transpose
from dynbatch.ragged import Ragged


class Permute(Operation):
    """x with two neighbouring groups of dimensions in each other's place.

    Shape:  (n, a, b, r) rows of `inner` elements -> (n, b, a, r), where n, a, b and r are products
        of sizes, which may differ between sentences.
    Batches with:  every other one of its `inner`.
    """

    __slots__ = ("groups", "inner", "is_length", "target")
    only_moves = True
    static = ("inner",)
    any_shape = True
    any_rank = True
    groups: tuple[int, int, int, int]
    inner: int
    is_length: bool  # of the width, where it was another dimension
    target: Shape

    def infer_shape(self, *shapes: Shape) -> Shape:
        return self.target

    def infer_ragged(self) -> int:
        return ROWS | (WIDTH if self.is_length else 0)

    def follows_sizes(self) -> bool:
        return False

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        rows: int = batch.elements // batch.first.inner
        return INDEX_BYTES * rows

    @classmethod
    def ids(cls, batch: Batch, is_back: bool) -> Array:
        """The row of the packed x, of `inner` elements, that is each of y's, or the reverse."""
        start, parts = 0, []
        for n, a, b, r in [node.groups for node in batch.nodes]:
            sizes = (n, b, a, r) if is_back else (n, a, b, r)
            numbers = np.arange(start, start + prod(sizes)).reshape(sizes)
            parts.append(numbers.swapaxes(1, 2).reshape(-1))
            start += prod(sizes)
        return np.concatenate(parts)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        shape = (-1, batch.first.inner)
        gather_rows(xs[0].flat.reshape(shape), cls.ids(batch, False), y.flat.reshape(shape))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            shape = (-1, batch.first.inner)
            gather_rows(dy.flat.reshape(shape), cls.ids(batch, True), dxs[0].flat.reshape(shape))


def permute(x: Node, dims: Sequence[int]) -> Node:
    """The dimensions of x in this order, as `torch.permute`.

    Args:
        dims: each dimension of x once.

    Raises:
        ShapeError: they are not.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:                   # heads (T, H, D) -> (H, T, D)
        ...     F.permute(F.constant(graph, 1.0, (5, 2, 4)), (1, 0, 2)).shape
        (2, 5, 4)
    """
    x = node_of("permute", x)
    if not isinstance(dims, Sequence):
        x.refuse(f"permute(dims={dims!r})", "dims are a tuple", "F.permute(x, (1, 0, 2))")
    wanted = [dim + x.ndim if dim < 0 else dim for dim in dims]
    if sorted(wanted) != list(range(x.ndim)):
        x.refuse(
            f"permute(dims={tuple(dims)}) of a value of shape {x.shape}",
            "each of its dimensions once",
            f"give an order of {tuple(range(x.ndim))}",
        )
    if x.ndim == 2:
        return x if wanted == [0, 1] else Transpose(x)
    order = list(range(x.ndim))
    for target, dim in enumerate(wanted):
        if order[target] != dim:
            begin = order.index(dim)
            end = begin + 1
            while end < len(order) and order[end] == wanted[target + end - begin]:
                end += 1
            x = _swapped(x, target, begin, end)
            order[target:end] = order[begin:end] + order[target:begin]
    return x


def transpose(x: Node, dim0: int | None = None, dim1: int | None = None) -> Node:
    """x with two dimensions in each other's place; those of a matrix need not be named.

    Raises:
        ShapeError: x has no such dimensions, or other than two where none are named.
    """
    x = node_of("transpose", x)
    if dim0 is None and dim1 is None:
        return Transpose(x)
    if not all([type(dim) is int and -x.ndim <= dim < x.ndim for dim in (dim0, dim1)]):
        x.refuse(
            f"transpose({dim0}, {dim1}) of a value of shape {x.shape}",
            "two of its dimensions",
            f"give two of {tuple(range(x.ndim))}; F.transpose(x) is enough for a matrix",
        )
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]  # type: ignore[index]  # checked
    return permute(x, order)


def _swapped(x: Node, first: int, begin: int, end: int) -> Node:
    """x with the dimensions `begin` to `end` ahead of those from `first` to `begin`."""
    sizes = x.shape
    keeps_width = end < x.ndim and not x.ragged & WIDTH
    edges = [0, first, begin, end, x.ndim - keeps_width]
    n, a, b, r = [prod(sizes[i:j]) for i, j in pairwise(edges)]
    target = (*sizes[:first], *sizes[begin:end], *sizes[first:begin], *sizes[end:])
    is_length = bool(x.ragged & (WIDTH if end < x.ndim else ROWS))
    inner = x.width if keeps_width else 1
    return Permute(x, groups=(n, a, b, r), inner=inner, is_length=is_length, target=target)
