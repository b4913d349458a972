"""`Flops`: floating-point operations, and `BatchSizes`, from which a node type counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Parameter


class Flops(NamedTuple):
    """Floating-point operations; an addition is one, and so is a multiplication.

    Attributes:
        products:    those of matrix products, 2 m n k for (m, k) by (k, n).
        elementwise: all others.
    """

    products: int = 0
    elementwise: int = 0

    @property
    def total(self) -> int:
        """Both together."""
        return self.products + self.elementwise

    def plus(self, other: Flops) -> Flops:
        """The sum of two counts."""
        return Flops(self.products + other.products, self.elementwise + other.elementwise)

    def times(self, count: int) -> Flops:
        """The count, `count` times."""
        return Flops(self.products * count, self.elementwise * count)


NO_FLOPS = Flops()
"""Values that are only moved."""


class BatchSizes(NamedTuple):
    """A batch with its sizes.

    Attributes:
        rows, elements: of all outputs.
        inputs:         elements of each packed input.
    """

    batch: Batch
    rows: int
    elements: int
    inputs: Sequence[int]

    def row_products(self, parameters: Sequence[Parameter]) -> int:
        factors: int = sum([p.size for p in parameters if p.value.ndim > 1])
        return 2 * factors * self.rows


def map_flops(sizes: BatchSizes) -> Flops:
    """Operations of a linear map of all rows."""
    node = sizes.batch.first
    biases = 0 if node.bias is None else sizes.elements
    return Flops(2 * node.weight.value.size * sizes.rows, biases)


def map_flops_backward(sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
    """Operations of the gradients of a linear map's input, weight and bias."""
    node = sizes.batch.first
    count = wanted[0] + (not node.weight.frozen)
    has_bias = node.bias is not None and not node.bias.frozen
    products = 2 * count * node.weight.value.size * sizes.rows
    return Flops(products, sizes.elements if has_bias else 0)
