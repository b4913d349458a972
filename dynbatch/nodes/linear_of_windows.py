"""`LinearOfWindows`: a linear map of windows that are never stored, a convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.kernels.images import Patches
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops, map_flops, map_flops_backward
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.images.convolution import Convolves
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import INDEX_BYTES, Retain
from dynbatch.parameter import Parameter


class LinearOfWindows(Convolves, Folded):
    """y_m = W window_m + b, for windows that slide over a sentence.

    It replaces a `LinearMap` of `Windows` in runs where no node but linear maps reads these.

    Batches with:  every other one of the same W, b, size, stride and padding.
    Backward:  dx = Σ Wᵀ dy over the windows that hold a token;  dW = Σ_m dy_m window_mᵀ, whose
        windows are unfolded again;  db = Σ dy.
    Cost:  as `Convolution`'s: in C windows are unfolded into the cache, block by block.
    """

    __slots__ = ("bias", "padding", "span", "stride", "weight")
    static = ("weight", "bias", "span", "stride", "padding")
    shape_rule = "x (T, D), weight (O, span · D), [bias (O,)] -> (T', O)"
    retains = Retain(inputs=True)
    bias: Parameter | None
    padding: int
    span: int
    stride: int
    weight: Parameter

    def check_shape(self, *shapes: Shape) -> Shape:
        return (self.stands_for.rows,)

    def follows_sizes(self) -> bool:
        return False

    @classmethod
    def patches(cls, batch: Batch) -> Patches:
        """The windows of all sentences, which are images of one line."""
        node, rows = batch.first, batch.input_rows(0)
        lines = np.ones(len(rows), np.int64)
        sides = np.column_stack((lines, rows, lines, batch.lengths)).astype(np.int64)
        return Patches(sides, (1, node.span), (1, node.stride), (0, -node.padding), (1, 1))

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        return map_flops(sizes)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        return map_flops_backward(sizes, wanted)

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return 6 * INDEX_BYTES * (len(batch.nodes) + 1)
