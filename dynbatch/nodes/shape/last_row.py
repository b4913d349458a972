"""`LastRow`: the last row of a sentence, as a sentence of one row."""

from __future__ import annotations

from dynbatch.kernels.rows import gather_rows
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.operation import Operation
from dynbatch.ragged import Ragged


class LastRow(Operation):
    """y_0 = x_{T-1}, without a gradient.

    Batches with:  every other one of its width.
    """

    __slots__ = ()
    shape_rule = "x (T, D) -> (1, D)"
    only_moves = True
    differentiable = False

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        gather_rows(x.values, x.offsets[1:] - 1, y.values)
