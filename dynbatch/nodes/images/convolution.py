"""Convolutions of images, and of sentences, of different sizes."""

from __future__ import annotations

from math import gcd
from typing import Any, ClassVar, Literal

from dynbatch.arguments import size
from dynbatch.kernels import arrays
from dynbatch.kernels import convolution as kernels
from dynbatch.kernels.images import Pair
from dynbatch.nodes.arguments import check_parameter, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.images.windows import Padding, Sliding, padding_of, pair
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class Convolves:
    """Base of convolutions, beside one that has windows: these times a weight, and a bias."""

    __slots__ = ()
    groups = 1
    patches: ClassVar[Any]  # a method: the windows of a batch

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        node = batch.first
        return kernels.workspace(node.weight.value, cls.patches(batch), node.groups)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        weight, windows = batch.first.weight.value, cls.patches(batch)
        return max(
            kernels.workspace(weight, windows, batch.first.groups),
            kernels.workspace_backward(weight, windows.reversed()),
        )

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        node = batch.first
        bias = None if node.bias is None else node.bias.value
        windows = cls.patches(batch)
        kernels.convolve(
            xs[0].values, windows, node.weight.value, bias, batch.scratch, y.values, node.groups
        )

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        node, gradients, windows = batch.first, batch.parameter_gradients(), cls.patches(batch)
        if dxs[0] is not None:
            pixels = windows.reversed()
            kernels.convolve_backward(
                dy.values, pixels, node.weight.value, batch.scratch, dxs[0].values, node.groups
            )
        if not node.weight.frozen:
            into = gradients.buffer(node.weight)
            x = batch.input(0).values
            kernels.weight_gradient(x, windows, dy.values, batch.scratch, into, node.groups)
        if node.bias is not None and not node.bias.frozen:
            arrays.sum_rows(dy.values, gradients.buffer(node.bias), gradients.later)


class Convolution(Convolves, Sliding):
    """y_m = Σ W_ij x_(m · stride - padding + (i, j) · dilation) + b, beyond the edge 0.

    Each group of O / groups outputs reads I features of x.

    Batches with:  every other one of its W, b, stride, padding, dilation and groups, whatever the
        sizes.
    Backward:  dx = Σ Wᵀ dy over the windows that hold a pixel;  dW = Σ_m dy_m window_mᵀ, whose
        windows are unfolded again;  db = Σ dy.
    Cost:  windows are unfolded in chunks (see `kernels.convolution`), each of which is one product
        a group; on a GPU those of all groups are one call.
    """

    __slots__ = ("behind", "bias", "dilation", "groups", "weight")
    static = ("weight", "bias", "stride", "padding", "behind", "dilation", "groups")
    shape_rule = (
        "weight (O, I, h, w)|(O, I, k), x (H, W, groups · I)|(T, groups · I), [bias (O,)]"
        " -> (H', W', O)|(T', O)"
    )
    shape_fix = Sliding.shape_fix | {"": "make the bias of {weight[0]} elements"}
    retains = Retain(inputs=True)
    behind: Pair | None
    bias: Parameter | None
    dilation: Pair
    groups: int
    weight: Parameter

    def kernel_size(self) -> Pair:
        height, width = (1, *self.weight.shape[2:])[-2:]
        return height, width

    def check_shape(self, *shapes: Shape) -> Shape:
        outputs, groups = self.weight.shape[0], self.groups
        if outputs % groups:
            self.refuse(
                f"{outputs} outputs in {groups} groups",
                f"{self.weight.name}.shape[0] is a multiple of groups",
                f"groups={gcd(outputs, groups)}, or a weight of more outputs",
            )
        return super().check_shape(*shapes)


def conv2d(
    x: Node,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Node:
    """Convolution of an image (H, W, I) -> (H', W', O), as `torch.nn.functional.conv2d`.

    Channels stand last in x, so that images whose heights and widths differ share one launch; the
    weight is PyTorch's. H' = (H + 2 · padding - dilation · (h - 1) - 1) // stride + 1, W' likewise.

    Args:
        weight:   (O, I / groups, h, w).
        bias:     (O,).
        stride, padding, dilation: one number, or (of the height, of the width). `padding` pixels of
            zeros count on either side. With "same" y is as large as x: dilation · (h - 1) pixels in
            all, and the odd one below and to the right, as in PyTorch; "valid" is 0.
        groups:   of channels: output o reads those of its group alone, the (o · groups // O)-th.
            With groups=I each channel has windows of its own: a depthwise convolution.

    Raises:
        ShapeError:    x is no image of I channels, or smaller than the window: the result would be
            empty, which is an error in PyTorch too. Or a parameter has another shape, or groups
            does not divide O.
        ArgumentError: stride, dilation or groups is below 1, padding below 0, or "same" with a
            stride.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import nodes as F
        >>> edges = db.Parameter(np.ones((8, 3, 3, 3), np.float32))
        >>> with db.Graph() as graph:
        ...     images = [F.constant(graph, 1.0, (h, w, 3)) for h, w in ((4, 6), (9, 5))]
        ...     [F.conv2d(x, edges, padding=1, stride=2).shape for x in images]
        [(2, 3, 8), (5, 3, 8)]
    """
    return _convolved("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv1d(
    x: Node,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: int = 1,
    padding: int | Literal["same", "valid", "causal"] = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Node:
    """Convolution of a sentence (T, I) -> (T', O), as `torch.nn.functional.conv1d`.

    T' = (T + 2 · padding - dilation · (k - 1) - 1) // stride + 1.

    Args:
        weight:  (O, I / groups, k), as PyTorch's.
        bias:    (O,).
        padding: tokens of zeros on either side, or "same" or "valid", as in `conv2d`; or "causal",
            dilation · (k - 1) before the sentence alone: y_t sees x up to x_t, and T' = T.
        groups:  of features, as in `conv2d`.

    Raises:
        ShapeError:    x is no sentence of I features, or shorter than the window: `F.windows` gives
            such sentences no rows instead. Or a parameter has another shape, or groups does not
            divide O.
        ArgumentError: stride, dilation or groups is below 1, padding below 0, or "same" with a
            stride.
    """
    return _convolved("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def _convolved(
    what: str, dims: int, x: Node, weight: Parameter, bias: Parameter | None,
    stride: int | Pair, padding: Padding, dilation: int | Pair, groups: int,
) -> Node:  # fmt: skip
    x = node_of(what, x)
    check_parameter(what, weight, x.graph)
    if bias is not None:
        check_parameter(what, bias, x.graph)
    if len(weight.shape) != dims + 2:
        x.refuse(
            f"{what} with weight {weight.name!r} of shape {weight.shape}",
            f"a weight is {'(O, I / groups, h, w)' if dims == 2 else '(O, I / groups, k)'}",
            "F.linear takes a weight (O, I)",
        )
    step, apart = pair(what, "stride", stride, 1, dims), pair(what, "dilation", dilation, 1, dims)
    height, width = (1, *weight.shape[2:])[-2:]
    front, behind = padding_of(what, padding, (height, width), step, apart, dims)
    return Convolution(
        x, weight=weight, bias=bias, stride=step, padding=front, behind=behind, dilation=apart,
        groups=size(what, "groups", groups),
    )  # fmt: skip
