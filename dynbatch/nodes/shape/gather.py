"""Rows by their indices, and the transpose: selections that are not rectangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dynbatch import indexing
from dynbatch.backend import Array
from dynbatch.errors import VocabularyError
from dynbatch.kernels import arrays
from dynbatch.kernels.move import row_index
from dynbatch.kernels.rows import gather_rows as gather_kernel
from dynbatch.kernels.rows import scatter_rows
from dynbatch.nodes.arguments import are_below, as_ids, node_of, same_ids
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node
from dynbatch.nodes.operation import INDEX_BYTES, Operation
from dynbatch.ragged import Ragged


class ReadsRowNumbers(Operation):
    """Base of types that a sentence gives whole numbers, whose rows follow from these.

    Widths may be lengths.
    """

    __slots__ = ()
    function: ClassVar[str]

    def infer_ragged(self) -> int:
        return ROWS | (self.inputs[0].ragged & WIDTH)

    def follows_sizes(self) -> bool:
        return False

    def given(self, array: Array) -> tuple[Array]:
        return (same_ids(self.function, array),)


class GatherRows(ReadsRowNumbers):
    """Rows of x by index, y_m = x_{ids_m}; any order, duplicates allowed.

    Batches with:  every other GatherRows of its width, which may be a length.
    Backward:  dx_i = Σ dy_m over the m with ids_m = i.
    """

    __slots__ = ("ids",)
    shape_rule = "x (T, D)|(D,), ids (M,) -> (M, D)"
    shape_fix = "F.stack scalars to a vector first"
    only_moves = True
    any_length = True
    given_attributes = ("ids",)
    function = "gather_rows"
    ids: Array

    def check_given(self, values: tuple[Any, ...], rows: Sequence[int]) -> None:
        (ids,), (_, count) = values, rows
        if not are_below(ids, count):
            position = int(np.flatnonzero((ids < 0) | (ids >= count))[0])
            problem = f"row {ids[position]} at position {position} of {ids.size} ids"
            fix = "use indices of this sentence's own tokens"
            self.refuse(problem, f"0 <= id < {count}", fix, VocabularyError)

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        ids = batch.rows if batch.has_one_width else batch.elements
        return super().index_bytes(batch) + INDEX_BYTES * ids

    @classmethod
    def packed_ids(cls, batch: Batch, x: Ragged) -> Array:
        """Ids as rows of the packed x, or of its elements where widths differ."""
        sizes = batch.sizes("ids")
        ids: Array = batch.concat("ids")
        if x.widths is None:
            ids = ids + indexing.repeat(x.offsets[:-1], sizes)
            return ids
        widths = indexing.repeat(x.widths, sizes)
        return row_index(indexing.repeat(x.starts[:-1], sizes) + ids * widths, widths)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        gather_kernel(xs[0].table, cls.packed_ids(batch, xs[0]), y.table)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            scatter_rows(dy.table, cls.packed_ids(batch, dx), dx.table)


class Transpose(Operation):
    """y = xᵀ. Its width is a length: readers still batch if their type has `any_length`.

    Batches with:  every other Transpose.
    """

    __slots__ = ()
    shape_rule = "x (T, D) -> (D, T)"
    shape_fix = "F.unsqueeze a vector first"
    only_moves = True
    any_shape = True

    def infer_ragged(self) -> int:
        (x,) = self.inputs
        is_length = x.ragged & ROWS or not x.rows  # features there would be
        return (ROWS if x.ragged & WIDTH else 0) | (WIDTH if is_length else 0)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        shapes = batch.input_shapes(0)
        arrays.transpose_segments(xs[0].flat, shapes, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            shapes = list(zip(batch.lengths, batch.widths, strict=True))
            arrays.transpose_segments(dy.flat, shapes, dxs[0].flat)


def gather_rows(x: Node, ids: Any) -> Node:
    """The rows of x with these indices, (M, D), as `torch.index_select(x, 0, ids)`.

    Args:
        ids: M integers, 0 <= id < T; any order, duplicates allowed.

    Raises:
        VocabularyError: an id is not a row of x; names the first one and its position.
    """
    return GatherRows(x, ids=as_ids("gather_rows", ids))


def repeat(x: Node, times: int) -> Node:
    """The rows of x `times` over, (T, D) -> (times · T, D); a vector becomes `times` equal rows.

    This is `x.repeat(times, 1)` in PyTorch.

    Raises:
        ShapeError: `times` is negative, or x is a scalar.
    """
    x = node_of("repeat", x)
    if times < 0:
        x.refuse(
            f"repeat({times})",
            "a value is repeated 0 or more times",
            "give times >= 0",
        )
    return GatherRows(x, ids=np.tile(np.arange(x.rows, dtype=np.int64), times))
