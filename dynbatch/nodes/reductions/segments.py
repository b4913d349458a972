"""Sums and means over neighbouring rows of one sentence: its words' features, its words' pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dynbatch.backend import Array
from dynbatch.kernels import reduce as kernels
from dynbatch.kernels.segment import spread_segments, sum_segments
from dynbatch.nodes.arguments import as_ids, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import INDEX_BYTES
from dynbatch.nodes.shape.gather import ReadsRowNumbers
from dynbatch.ragged import Ragged, offsets_of


class SegmentSum(ReadsRowNumbers):
    """y_s = Σ x_m over the rows of segment s, 0 where it has none. dx_m = dy_s.

    Batches with:  every other one of its type and width, whatever the counts.
    """

    __slots__ = ("counts",)
    shape_rule = "x (M, D), counts (S,) -> (S, D)"
    shape_fix = "give a matrix (M, D); counts sum up to M"
    given_attributes = ("counts",)
    function = "segment_sum"
    counts: Array
    kernel: ClassVar[staticmethod[..., None]] = staticmethod(sum_segments)
    backward_kernel: ClassVar[staticmethod[..., None]] = staticmethod(spread_segments)

    def check_given(self, values: tuple[Any, ...], rows: Sequence[int]) -> None:
        (counts,), (_, total) = values, rows
        if int(counts.sum()) != total or (counts < 0).any():
            self.refuse(
                f"{counts.size} segments of {counts.sum()} rows in all, of a value of {total} rows",
                "a matrix (M, D) and counts of 0 or more that sum up to M",
                "lengths=[len(each) for each in segments], of the segments whose rows x has",
            )

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return super().index_bytes(batch) + INDEX_BYTES * (batch.rows + 1)

    @classmethod
    def ends(cls, batch: Batch) -> Array:
        """(K + 1,) the offset of each segment among the rows of all sentences."""
        return offsets_of(batch.concat("counts"))

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        cls.kernel(xs[0].values, cls.ends(batch), y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            cls.backward_kernel(dy.values, cls.ends(batch), dxs[0].values)


class SegmentMean(SegmentSum):
    """y_s = Σ x_m / n over the n rows of segment s, 0 where it has none. dx_m = dy_s / n."""

    __slots__ = ()
    kernel = staticmethod(kernels.mean_segments)
    backward_kernel = staticmethod(kernels.mean_segments_backward)


def segment_sum(x: Node, lengths: Any) -> Node:
    """Sums over neighbouring rows, (S, D), as `torch.segment_reduce(x, "sum", lengths=lengths)`.

    Args:
        x:       (M, D), the rows of all segments, one segment after the other.
        lengths: S numbers of rows, 0 or more; they sum up to M.

    Raises:
        ShapeError: x is not a matrix, or the lengths do not fit it.

    Example:
        >>> import dynbatch as db
        >>> with db.Graph() as graph:
        ...     x = db.nodes.input(graph, [[1.0], [2.0], [4.0]])
        ...     segment_sum(x, [2, 0, 1]).value.tolist(), segment_mean(x, [2, 0, 1]).value.tolist()
        ([[3.0], [0.0], [4.0]], [[1.5], [0.0], [4.0]])
    """
    x = node_of("segment_sum", x)
    return SegmentSum(x, counts=as_ids("segment_sum", lengths))


def segment_mean(x: Node, lengths: Any) -> Node:
    """Means over neighbouring rows, (S, D); 0 where a segment has none, as `F.mean` is.

    Args:
        x, lengths: as for `segment_sum`.

    Raises:
        ShapeError: x is not a matrix, or the lengths do not fit it.
    """
    x = node_of("segment_mean", x)
    return SegmentMean(x, counts=as_ids("segment_mean", lengths))
