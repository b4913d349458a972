"""Dropout whose mask depends on the node alone, never on the mini-batch around it."""

from __future__ import annotations

import numpy as np

from dynbatch.arguments import number
from dynbatch.kernels import arrays
from dynbatch.kernels import dropout as kernels
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Elementwise, Operation
from dynbatch.ragged import Ragged


class InvertedDropout(Elementwise):
    """y = x / (1 - p) with probability 1 - p, else 0, for every element.

    The mask is a hash of the node's stream (`Graph.stream`) and the element's number in the node.
    It is not stored: backward draws it again.

    Batches with:  every other Dropout, whatever the shapes and probabilities.
    """

    stream_name = "Dropout"
    __slots__ = ("p", "stream")
    shape_rule = "x (…) -> (…)"
    draws = True
    p: float
    stream: int

    def rebuild(self, *inputs: Node) -> Node:
        return dropout(inputs[0], self.p)  # another node draws other numbers

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        streams = batch.array("stream", np.uint32)
        probabilities = batch.array("p", np.float64)
        kernels.dropout(xs[0].flat, streams, probabilities, y.starts, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            cls.forward_batch(batch, dxs[0], dy)  # linear in x, with a diagonal matrix


class Ones(Operation):
    """Ones, (T, columns) for the T tokens of x: a scan's dropout masks are made from them.

    Batches with:  every other one, whatever the shapes.
    """

    __slots__ = ("columns",)
    shape_rule = "x (T, D)|(D,) -> (T, columns)|(columns,)"
    only_moves = True
    any_shape = True
    differentiable = False
    columns: int

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        arrays.fill(y.flat, 1)


def dropout(x: Node, p: float = 0.5, training: bool = True) -> Node:
    """x with elements set to 0 with probability `p` and the rest scaled by 1 / (1 - p).

    As `torch.nn.functional.dropout`, but repeatable: the mask follows from the graph's seed, from
    what x was made of and from nothing else. Without `training`, or with p = 0, it is x itself.

    Raises:
        ArgumentError: p is not between 0 and 1.

    Source: Srivastava et al. 2014, JMLR 15; counter-based numbers after Salmon et al. 2011
        (Parallel Random Numbers: As Easy as 1, 2, 3), with a lighter hash than theirs.
    """
    x = node_of("dropout", x)
    if type(p) is not float or not 0 <= p <= 1:
        p = number("dropout", "p", p, "[0, 1]")
    if not training or p == 0:
        return x
    node = InvertedDropout(x, p=float(p), stream=0)
    node.stream = x.graph.stream(node)
    return node
