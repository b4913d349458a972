"""`ScatterRows`: rows added up at given places, which is how a gradient goes back to rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import VocabularyError
from dynbatch.kernels.rows import gather_rows as gather_kernel
from dynbatch.kernels.rows import scatter_rows
from dynbatch.nodes.arguments import are_below
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.operation import INDEX_BYTES
from dynbatch.nodes.shape.gather import GatherRows, ReadsRowNumbers
from dynbatch.ragged import Ragged


class ScatterRows(ReadsRowNumbers):
    """Rows of x added up by index, y_i = Σ x_m over the m with ids_m = i: `GatherRows` reversed.

    Batches with:  every other ScatterRows of its width, which may be a length.
    Backward:  dx_m = dy_{ids_m}.
    """

    __slots__ = ("count", "ids")
    shape_rule = "x (M, D)|(D,), ids (M,)|(1,) -> (count, D)"
    shape_fix = "give as many ids as x has rows"
    any_length = True
    given_attributes = ("ids",)
    function = "scatter_rows"
    ids: Array
    count: int

    def check_given(self, values: tuple[Any, ...], rows: Sequence[int]) -> None:
        (ids,), (count, _) = values, rows
        if not are_below(ids, count):
            self.refuse(
                f"ids from {ids.min()} to {ids.max()}",
                f"0 <= id < {count}",
                "give more rows to add to",
                VocabularyError,
            )

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        is_flat = not batch.has_one_width
        ids = sum([rows * (width if is_flat else 1) for rows, width in batch.input_shapes(0)])
        return super().index_bytes(batch) + INDEX_BYTES * ids

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        scatter_rows(xs[0].table, GatherRows.packed_ids(batch, y), y.table)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            gather_kernel(dy.table, GatherRows.packed_ids(batch, dy), dxs[0].table)


def scattered(x: object, ids: object, count: int) -> ScatterRows:
    """Rows of x added up to `count` rows by their ids."""
    return ScatterRows(x, ids=np.asarray(ids, np.int64), count=count)  # type: ignore[arg-type]
