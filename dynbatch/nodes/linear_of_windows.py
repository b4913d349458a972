"""`LinearOfWindows`: a linear map of windows that are never stored, a convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.kernels import arrays
from dynbatch.kernels import convolution as kernels
from dynbatch.kernels.images import Patches
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops, map_flops, map_flops_backward
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import INDEX_BYTES, Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class LinearOfWindows(Folded):
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

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return kernels.workspace(batch.first.weight.value, cls.patches(batch))

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        weight, windows = batch.first.weight.value, cls.patches(batch)
        return max(
            kernels.workspace(weight, windows),
            kernels.workspace_backward(weight, windows.reversed()),
        )

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        weight, bias = batch.first.weight.value, batch.first.bias
        kernels.convolve(
            xs[0].values, cls.patches(batch), weight, None if bias is None else bias.value,
            batch.scratch, y.values,
        )  # fmt: skip

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        node, gradients, windows = batch.first, batch.parameter_gradients(), cls.patches(batch)
        if dxs[0] is not None:
            kernels.convolve_backward(
                dy.values, windows.reversed(), node.weight.value, batch.scratch, dxs[0].values
            )
        if not node.weight.frozen:
            into, x = gradients.buffer(node.weight), batch.input(0).values
            kernels.weight_gradient(x, windows, dy.values, batch.scratch, into)
        if node.bias is not None and not node.bias.frozen:
            arrays.sum_rows(dy.values, gradients.buffer(node.bias), gradients.later)
