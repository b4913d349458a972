"""Reductions: over a list of scalars, over tokens, over features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.errors import EmptyBatchError
from dynbatch.nodes.base import Node, Shape
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class Total(Node):
    """number · Σ x_i of any number of scalars.

    Batches with:  every other Total. Its gradient needs no value, so it is known before forward.
    """

    __slots__ = ("number",)
    any_shape = True
    variadic = True
    number: float

    def infer_shape(self, *shapes: Shape) -> Shape:
        self.require(
            all(shape == () for shape in shapes),
            f"shapes {[s for s in shapes if s][:3]} among {len(shapes)} inputs",
            "a list is reduced only if it holds scalars",
            "reduce each sentence to a scalar first",
        )
        return ()

    @classmethod
    def forward(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        starts = np.concatenate(([0], np.cumsum(batch.counts())[:-1]))
        np.add.reduceat(xs[0].flat, starts, out=y.flat)
        np.multiply(y.flat, batch.array("number", batch.dtype), out=y.flat)

    @classmethod
    def backward(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            each = dy.flat * batch.array("number", batch.dtype)
            np.copyto(dxs[0].flat, np.repeat(each, batch.counts()))


def sum(x: Node | Sequence[Node]) -> Node:
    """Sum of a list of scalars."""
    return _total("sum", x, 1.0)


def mean(x: Node | Sequence[Node]) -> Node:
    """Mean of a list of scalars."""
    return _total("mean", x, None)


def _total(what: str, x: Sequence[Node], number: float | None) -> Node:
    nodes = list(x)
    if not nodes:
        raise EmptyBatchError(
            f"{what}: the list is empty.\n"
            "  rule: a loss needs at least one sentence\n"
            "  fix:  skip empty mini-batches"
        )
    return Total(*nodes, number=1 / len(nodes) if number is None else number)
