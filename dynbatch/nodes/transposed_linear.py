"""`TransposedLinearMap`: a linear map by the transpose of a parameter, as `linear`'s gradient."""

from __future__ import annotations

from dynbatch.kernels import blas
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class TransposedLinearMap(Operation):
    """y = x W, row by row: what carries a gradient back through `LinearMap`.

    Shape:  x (…, O), W (O, I) -> y (…, I).
    Batches with:  every other one of the same W: one product for all tokens.
    Backward:  dx = dy Wᵀ;  dW = xᵀ dy.
    """

    __slots__ = ("weight",)
    static = ("weight",)
    retains = Retain(inputs=True)
    rowwise = True
    any_rank = True
    weight: Parameter

    def infer_shape(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if not x or len(self.weight.shape) != 2 or x[-1] != self.weight.shape[0]:
            self.refuse(
                f"x of shape {x} and a weight of shape {self.weight.shape}",
                f"x.shape[-1] == {self.weight.name}.shape[0]",
                "give the gradient of F.linear(…, weight)",
            )
        return (*x[:-1], self.weight.shape[1])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        blas.matmul_rows(xs[0].values, batch.first.weight.value, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        weight, gradients = batch.first.weight, batch.parameter_gradients()
        if dxs[0] is not None:
            blas.matmul_rows(dy.values, weight.value.T, dxs[0].values)
        gradients.outer(weight, dy.values, batch.input(0).values)
