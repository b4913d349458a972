"""The k largest elements along a dimension, the largest first, and where they are."""

from __future__ import annotations

from typing import Never

import numpy as np

from dynbatch.arguments import size
from dynbatch.backend import Array
from dynbatch.kernels import arrays
from dynbatch.kernels import kmax_pool as kernels
from dynbatch.kernels.choosing.ranks import rank_rows, take_from_rows
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.axes import FEATURES, TOKENS, axis, segment_bytes, segments
from dynbatch.nodes.shape.gather import Transpose
from dynbatch.ragged import Ragged


class LargestOfRows(Operation):
    """Base of the k largest elements of each row, in falling order, and of their places.

    They are chosen as by `KMaxPool`, each row for a segment of one column, and then ranked.

    Batches with:  every other one of its type and k; the width may be a length.
    """

    __slots__ = ("k",)
    static = ("k",)
    shape_rule = "x (…, D) -> (…, k)"
    shape_fix = "F.stack scalars to a vector first"
    any_length = True
    rowwise = True
    k: int

    def infer_ragged(self) -> int:
        return self.inputs[0].ragged & ROWS

    def check_shape(self, *shapes: Shape) -> None:
        (shape,) = shapes
        if shape[-1] < self.k and shape[:-1] != (0,):
            self.refuse(
                f"the {self.k} largest elements of {shape}",
                "there are k elements or more along the dim",
                "F.topk(x, min(k, x.shape[dim]), dim), or F.concat with numbers of -inf first",
            )

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return segment_bytes(batch, FEATURES)

    @classmethod
    def choose(
        cls, batch: Batch, x: Ragged, chosen: Array, place: Array | None, ranks: Array
    ) -> None:
        """Choose the largest elements of each row in their order, and rank them.

        Args:
            chosen, place, ranks: (N, k), overwritten; the last two integers as wide as x's
                elements, `place` of where each was in its row, `ranks` of where each rank is found.
        """
        flat, offsets = rows_of(x)
        columns = None if place is None else place.reshape(-1, 1)
        kernels.kmax_pool(flat, offsets, batch.first.k, chosen.reshape(-1, 1), columns)
        rank_rows(chosen, ranks)


def rows_of(x: Ragged) -> tuple[Array, Array]:
    """The elements, a column, and the offsets of rows in it."""
    flat, offsets = segments(x, FEATURES)
    assert isinstance(offsets, np.ndarray)
    return flat, offsets


def elements(batch: Batch) -> int:
    """All that are chosen."""
    return batch.rows * int(batch.first.k)


def _integers(array: Array, batch: Batch) -> Array:
    """Memory of floats as integers (N, k)."""
    return array.view(f"i{array.itemsize}").reshape(batch.rows, batch.first.k)


class TopK(LargestOfRows):
    """The k largest elements of each row. dx is dy where they are, else 0.

    Keeps:  the place and the rank of each element, each as large as the output.
    """

    __slots__ = ()

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(("place", "ranks"), (batch.rows, batch.first.k))

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return 2 * elements(batch)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return elements(batch)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        chosen, spare = batch.scratch[: 2 * y.values.size].reshape(2, *y.values.shape)
        places = _integers(batch.saved["place"], batch) if batch.keeps else None
        ranks = _integers(batch.saved["ranks"] if batch.keeps else spare, batch)
        cls.choose(batch, xs[0], chosen, places, ranks)
        take_from_rows(chosen, ranks, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is None:
            return
        k, (dx, offsets) = batch.first.k, rows_of(dxs[0])
        places, ranks = [
            _integers(batch.saved[name], batch).reshape(-1, 1) for name in ("place", "ranks")
        ]
        of_ranks, in_order = dy.flat[:, None], batch.scratch[: dy.flat.size, None]
        of_each = np.arange(0, dy.flat.size + 1, k)
        kernels.kmax_pool_backward(of_ranks, of_each, k, ranks, in_order)
        kernels.kmax_pool_backward(in_order, offsets, k, places, dx)


class TopKPlaces(LargestOfRows):
    """The places of the k largest elements of each row, as floats. It has no gradient.

    Exact below 2^24 elements in float32.
    """

    __slots__ = ()
    exact = True
    differentiable = False

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return 3 * elements(batch)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        chosen, *spare = batch.scratch[: 3 * y.values.size].reshape(3, *y.values.shape)
        places, ranks = [_integers(each, batch) for each in spare]
        cls.choose(batch, xs[0], chosen, places, ranks)
        arrays.copy(places, chosen)
        take_from_rows(chosen, ranks, y.values)


def topk(x: Node, k: int, dim: int = -1, **habits: Never) -> tuple[Node, Node]:
    """The k largest elements along a dim, the largest first, and their ids, as `torch.topk`.

    (T, D) gives (T, k) and (T, k) over features (`dim=-1`), (k, D) and (k, D) over tokens
    (`dim=0`), a vector (k,) and (k,); sentences of all lengths are one batch. Ids are floats, as
    the numbers of any node: `ids.value.astype(int)`. They have no gradient; that of the values goes
    to the elements that were taken.

    Of equal elements the first is taken, and ranks, first, where PyTorch leaves it open. Which
    elements are taken where some are NaN is not defined.

    Raises:
        ShapeError:    x has no such dim, or less than k elements along it.
        ArgumentError: k is not an integer of 1 or more.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     values, ids = F.topk(F.input(graph, [3.0, 1.0, 5.0, 3.0]), 3)
        ...     values.value.tolist(), ids.value.astype(int).tolist()
        ([5.0, 3.0, 3.0], [2, 0, 3])
    """
    x = node_of("topk", x)
    k = size("topk", "k", k, 1)
    if axis("topk", x, dim, habits) == TOKENS:
        columns = Transpose(x)
        return Transpose(TopK(columns, k=k)), Transpose(TopKPlaces(columns, k=k))
    return TopK(x, k=k), TopKPlaces(x, k=k)
