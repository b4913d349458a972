"""Transposed convolutions of images of different sizes: each pixel spreads over a window."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from dynbatch.arguments import refused, size
from dynbatch.backend import Array
from dynbatch.kernels import arrays
from dynbatch.kernels import convolution as kernels
from dynbatch.kernels.images import Pair, Patches
from dynbatch.nodes.arguments import check_parameter, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.images.windows import Sliding, pair
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class TransposedConvolution(Sliding):
    """The map from dy to dx of a convolution with the same weight, and a bias.

    y_n = Σ W_ijᵀ x_m + b over all m, (i, j) with m · stride - padding + (i, j) · dilation = n. Each
    of G groups of I / G features of x goes to O / G features of y. In `kernels.convolution`, x has
    the place of dy, and y that of dx.

    Batches with:  every other one of its W, b, stride, padding, output_padding, dilation and
        groups, whatever the sizes.
    Backward:  dx is the convolution of dy by W;  dW = Σ_m x_m window_mᵀ, of windows on dy;
        db = Σ dy.
    Cost:  as of `Convolution`.
    """

    __slots__ = ("bias", "dilation", "groups", "output_padding", "weight")
    static = ("weight", "bias", "stride", "padding", "output_padding", "dilation", "groups")
    shape_rule = "x (H, W, I), weight (I, O, h, w), [bias (groups · O,)] -> (H', W', groups · O)"
    shape_fix = Sliding.shape_fix | {"": "make the bias of {weight[1] * self.groups} elements"}
    retains = Retain(inputs=True)
    bias: Parameter | None
    dilation: Pair
    groups: int
    output_padding: Pair
    weight: Parameter

    def kernel_size(self) -> Pair:
        height, width = self.weight.shape[2:]
        return height, width

    def check_shape(self, *shapes: Shape) -> Shape:
        inputs, groups = self.weight.shape[0], self.groups
        if inputs % groups:
            self.refuse(
                f"{inputs} inputs in {groups} groups",
                f"{self.weight.name}.shape[0] is a multiple of groups",
                f"groups={gcd(inputs, groups)}, or a weight of more inputs",
            )
        self.sides = shapes[0][0], shapes[0][1]
        height, width = self.spread(np.array(self.sides)).tolist()
        if not min(self.sides) or min(height, width) < 1:
            self.refuse(
                f"the result would be empty: {height} × {width}",
                "an image has at least one pixel, and its windows are larger than the padding",
                "less padding, or leave out what is so small",
            )
        return (height, width)

    def spread(self, sides: Array) -> Array:
        """Heights and widths of y for those of x, (…, 2)."""
        kernel, stride, padding, dilation, more = [
            np.array(each)
            for each in (
                self.kernel_size(), self.stride, self.padding, self.dilation, self.output_padding,
            )
        ]  # fmt: skip
        result: Array = (sides - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1
        return result

    def windows_of(self, sides: Array) -> Patches:
        """The windows on y: one for each pixel of x."""
        both = np.column_stack((self.spread(sides), sides)).astype(np.int64)
        offset = -self.padding[0], -self.padding[1]
        return Patches(both, self.kernel_size(), self.stride, offset, self.dilation)

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        return Flops(_products(sizes), max(sizes.elements, *sizes.inputs))

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        count = int(any(wanted)) + int(not sizes.batch.first.weight.frozen)
        elementwise = max(sizes.elements, *sizes.inputs) if any(wanted) else 0
        return Flops(_products(sizes) * count, elementwise)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        weight = batch.first.weight.value
        return kernels.workspace_backward(weight, cls.patches(batch).reversed())

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        node = batch.first
        return kernels.workspace(node.weight.value, cls.patches(batch), node.groups)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        node, pixels = batch.first, cls.patches(batch).reversed()
        bias = None if node.bias is None else node.bias.value
        kernels.convolve_backward(
            xs[0].values, pixels, node.weight.value, batch.scratch, y.values, node.groups, bias
        )

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        node, gradients, windows = batch.first, batch.parameter_gradients(), cls.patches(batch)
        if dxs[0] is not None:
            kernels.convolve(
                dy.values, windows, node.weight.value, None, batch.scratch, dxs[0].values,
                node.groups,
            )  # fmt: skip
        if not node.weight.frozen:
            into, x = gradients.buffer(node.weight), batch.input(0).values
            kernels.weight_gradient(dy.values, windows, x, batch.scratch, into, node.groups)
        if node.bias is not None and not node.bias.frozen:
            arrays.sum_rows(dy.values, gradients.buffer(node.bias), gradients.later)


def _products(sizes: BatchSizes) -> int:
    """Operations of a product of each pixel of x with the weight."""
    weight: Parameter = sizes.batch.first.weight
    return 2 * weight.size * (sizes.inputs[0] // weight.shape[0])


def conv_transpose2d(
    x: Node,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    output_padding: int | Pair = 0,
    groups: int = 1,
    dilation: int | Pair = 1,
) -> Node:
    """Transposed convolution, (H, W, I) -> (H', W', O), as `torch.nn.functional.conv_transpose2d`.

    Channels stand last in x, as in `conv2d`; the weight is PyTorch's.
    H' = (H - 1) · stride - 2 · padding + dilation · (h - 1) + output_padding + 1, W' likewise.

    Args:
        weight:   (I, O / groups, h, w).
        bias:     (O,).
        stride, padding, dilation: those of the convolution whose transposed map it is.
        output_padding: pixels more below and to the right: with a stride, a convolution gives
            images of several sizes the size of x. Less than stride or dilation.
        groups:   of channels of x, each of which goes to outputs of its own.

    Raises:
        ShapeError:    x is no image of I channels, or has no pixel, or the result would be empty.
            Or a parameter has another shape, or groups does not divide I.
        ArgumentError: stride, dilation or groups is below 1, padding or output_padding below 0, or
            output_padding as large as stride and dilation.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import nodes as F
        >>> upsample = db.Parameter(np.ones((8, 3, 2, 2), np.float32))
        >>> with db.Graph() as graph:
        ...     images = [F.constant(graph, 1.0, (h, w, 8)) for h, w in ((4, 6), (9, 5))]
        ...     [F.conv_transpose2d(x, upsample, stride=2).shape for x in images]
        [(8, 12, 3), (18, 10, 3)]
    """
    what = "conv_transpose2d"
    x = node_of(what, x)
    check_parameter(what, weight, x.graph)
    if bias is not None:
        check_parameter(what, bias, x.graph)
    if len(weight.shape) != 4:
        x.refuse(
            f"{what} with weight {weight.name!r} of shape {weight.shape}",
            "a weight is (I, O / groups, h, w)",
            "F.conv2d takes a weight (O, I / groups, h, w)",
        )
    step, apart = pair(what, "stride", stride, 1), pair(what, "dilation", dilation, 1)
    return TransposedConvolution(
        x, weight=weight, bias=bias, stride=step, padding=pair(what, "padding", padding, 0),
        output_padding=more_pixels(what, output_padding, step, apart), dilation=apart,
        groups=size(what, "groups", groups),
    )  # fmt: skip


def more_pixels(what: str, output_padding: int | Pair, stride: Pair, dilation: Pair) -> Pair:
    """The `output_padding` of a transposed convolution, checked.

    Raises:
        ArgumentError: it is below 0, or as large as stride and dilation.
    """
    more = pair(what, "output_padding", output_padding, 0)
    if any([n >= max(s, d) for n, s, d in zip(more, stride, dilation, strict=True)]):
        raise refused(
            what, f"output_padding {output_padding} with stride {stride}, dilation {dilation}",
            "output_padding is less than stride, or than dilation",
            "output_padding=0, or a larger stride",
        )  # fmt: skip
    return more
