"""`TransposedLinearMap`: a linear map by the transpose of a parameter, as `linear`'s gradient."""

from __future__ import annotations

from dynbatch.kernels import blas
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class TransposedLinearMap(Operation):
    """y = x W, row by row: what carries a gradient back through `LinearMap`.

    Batches with:  every other one of the same W: one product for all tokens.
    Backward:  dx = dy Wᵀ;  dW = xᵀ dy.
    """

    __slots__ = ("weight",)
    static = ("weight",)
    shape_rule = "x (…, O), weight (O, I) -> (…, I)"
    shape_fix = "give the gradient of F.linear(…, weight)"
    retains = Retain(inputs=True)
    rowwise = True
    weight: Parameter

    @classmethod
    def outer_weight(cls, batch: Batch) -> Parameter:
        weight: Parameter = batch.first.weight
        return weight

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        blas.matmul_rows(xs[0].values, batch.first.weight.value, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        weight, gradients = batch.first.weight, batch.parameter_gradients()
        if dxs[0] is not None:
            blas.matmul_rows(dy.values, weight.value.T, dxs[0].values)
        gradients.outer(weight, dy.values, batch.input(0).values)
