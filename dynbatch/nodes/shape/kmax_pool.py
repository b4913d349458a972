"""The k largest numbers of each feature, in the order of the sentence."""

from __future__ import annotations

from dynbatch.arguments import size
from dynbatch.kernels import kmax_pool as kernels
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.windows import KeepsPlaces
from dynbatch.ragged import Ragged


class KMaxPool(KeepsPlaces, Operation):
    """The k largest of each feature, in order; of equal numbers the first. dx is dy where they are.

    Batches with:  every other one of its width and k, whatever the lengths.
    Keeps:  the position of each number, as large as the output.
    """

    __slots__ = ("k",)
    static = ("k",)
    shape_rule = "x (T, D) -> (k, D)"
    shape_fix = "F.unsqueeze(x, 0) makes a row of a vector"
    k: int

    def check_shape(self, *shapes: Shape) -> None:
        if shapes[0][0] < self.k:
            self.refuse(
                f"the {self.k} largest tokens of {shapes[0]}",
                "a sentence (T, D) has k tokens or more",
                "F.kmax_pool(x, min(k, x.rows)), or F.concat with rows of -inf first",
            )

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        places = cls.place(batch) if batch.keeps else None
        kernels.kmax_pool(x.values, x.offsets, batch.first.k, y.values, places)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            places = cls.place(batch)
            kernels.kmax_pool_backward(dy.values, dx.offsets, batch.first.k, places, dx.values)


def kmax_pool(x: Node, k: int) -> Node:
    """The k largest numbers of each feature, in the order of the sentence, (T, D) -> (k, D).

    Raises:
        ShapeError:    x is not a matrix, or has less than k tokens.
        ArgumentError: k is not an integer of 1 or more.

    Source: Kalchbrenner, Grefenstette & Blunsom 2014, arXiv:1404.2188, section 3.2; DyNet's
            kmax_pooling.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [[3.0, 0.0], [1.0, 5.0], [2.0, 4.0]])
        ...     F.kmax_pool(x, 2).value.tolist()
        [[3.0, 5.0], [2.0, 4.0]]
    """
    return KMaxPool(x, k=size("kmax_pool", "k", k, 1))
