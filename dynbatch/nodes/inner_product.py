"""Inner products with arrays: the scalars that backward starts from for several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.errors import EmptyBatchError, GraphError, NumericError, ShapeError
from dynbatch.kernels import arrays, binary, segment
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.nodes.arguments import not_a_node
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Owner, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.ragged import Ragged, offsets_of


class InnerProduct(Operation):
    """Base of y = Σ_i ⟨w_i, x_i⟩ for nodes x_i, with weights w_i of the same shapes.

    Its gradient with respect to x_i is w_i.

    Shape:  any number of x_i, of any shapes -> ().
    Batches with:  every other node of its type.
    """

    __slots__ = ("weights",)
    exact = True
    any_shape = True
    any_rank = True
    variadic = True
    weights: Array

    def infer_shape(self, *shapes: Shape) -> Shape:
        size = sum([int(np.prod(shape)) for shape in shapes])
        if self.weights.size != size:
            self.refuse(
                f"{self.weights.size} weights for {size} elements",
                "one weight for each element of the inputs",
                "give an array of the shape of each input",
            )
        return ()

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """The number of elements of all weights."""
        return sum(batch.sizes("weights"))

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return cls.workspace(batch)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        weights, offsets = cls._weights(batch)
        binary.combine(binary.multiply, xs[0].flat, weights, weights)
        segment.sum_segments(weights.reshape(-1, 1), offsets, y.flat.reshape(-1, 1))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            weights, offsets = cls._weights(batch)
            segment.spread_segments(dy.flat.reshape(-1, 1), offsets, dx.flat.reshape(-1, 1))
            binary.combine(binary.multiply, dx.flat, weights, dx.flat)

    @classmethod
    def _weights(cls, batch: Batch) -> tuple[Array, Array]:
        """The weights of all nodes, on the values' device, and where each node's begin."""
        values = [node.weights for node in batch.nodes]
        offsets = offsets_of([w.size for w in values])
        weights: Array = batch.scratch[: int(offsets[-1])]
        arrays.upload(weights, values)
        return weights, offsets


class LossSum(InnerProduct):
    """The sum of several losses, from which backward starts; it must be finite.

    Batches with:  nothing, since each backward has one.
    """

    __slots__ = ()
    joins_sentences = True


class Seed(LossSum):
    """The start of backward from outputs y_i with gradients g_i: it hands g_i to y_i.

    The value is 0: Σ_i ⟨g_i, y_i⟩ is not needed, and may overflow, or be 0 · inf, where the
    gradients are finite.

    Batches with:  nothing, since each backward has one.
    """

    __slots__ = ()

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """0, since only backward reads the weights."""
        return 0

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return super().workspace(batch)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        arrays.fill(y.flat, 0)


def gradients_given(graph: Owner, outputs: Sequence[Any], gradients: Any) -> list[Array]:
    """The gradient that backward starts from at each output, in its shape; 1 for None.

    Raises:
        DtypeError:      an output is not a node.
        EmptyBatchError: there is no output.
        GraphError:      an output belongs to another graph.
        NumericError:    a gradient is not finite.
        ShapeError:      numbers or shapes differ, or one is missing for more than one element.
    """
    if not outputs:
        raise EmptyBatchError.at_caller(
            "backward: at least one output is needed.\n"
            "  fix:  graph.backward(loss), or a list of nodes"
        )
    for node in outputs:
        if not isinstance(node, Node):
            raise not_a_node("backward", node)
        if node.graph is not graph:
            raise GraphError(f"backward: {node!r} belongs to another graph.")
    several = isinstance(gradients, list | tuple)
    if not several or len(gradients) != len(outputs):
        shown = f"{len(gradients)} gradients" if several else f"{type(gradients).__name__}"
        raise ShapeError.at_caller(
            f"backward: {shown} for {len(outputs)} outputs.\n"
            "  rule: one gradient for each output, in the same order\n"
            "  fix:  gradient=[array, …], with None where a scalar's is 1"
        )
    pairs = zip(outputs, gradients, strict=True)
    return [_gradient_given(node, gradient, graph.dtype) for node, gradient in pairs]


def _gradient_given(node: Node, gradient: Any, dtype: DType) -> Array:
    if gradient is None:
        if node.rows * node.width != 1:
            raise ShapeError.at_caller(
                f"{node.label()}: the loss has shape {node.shape}.\n"
                "  rule: backward starts from a scalar, or from nodes with a given gradient each\n"
                "  fix:  F.mean([...]) or F.sum([...]) of the sentences' losses; for a\n"
                "        vector-Jacobian product graph.backward(node, gradient=array)"
            )
        return np.ones(node.shape, dtype)
    try:
        array = exchange.view("backward", gradient)
    except ValueError:
        array = np.empty(0, object)
    if not isinstance(array, np.ndarray):
        array = arrays.download(array)
    if array.shape != node.shape or array.dtype.kind not in "fiub":
        raise ShapeError.at_caller(
            f"{node.label()}: the gradient given for it is {array.dtype} of shape {array.shape}.\n"
            "  rule: a gradient has the shape of its node\n"
            f"  fix:  give numbers of shape {node.shape}"
        )
    array = array.astype(dtype)
    if not np.isfinite(array).all():
        position = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        where = f" at {position}" if position else ""
        raise NumericError.at_caller(
            f"{node.label()}: the gradient given for it is {array[position]}{where}; no gradient "
            "was added.\n  rule: a given gradient is finite\n"
            "  fix:  check the code that computes this gradient"
        )
    return array


def seed(outputs: Sequence[Node], gradients: Sequence[Array], are_losses: bool) -> Node:
    """The scalar that backward starts from: its gradient at each output is the one given."""
    node_type = LossSum if are_losses else Seed
    weights = np.concatenate([gradient.reshape(-1) for gradient in gradients])
    return node_type(*outputs, weights=weights)
