"""Layers of images (H, W, C) whose heights and widths differ: convolutions, pools, flattening."""

from __future__ import annotations

from math import gcd
from typing import Literal

from dynbatch import nodes as F
from dynbatch.arguments import refused, size, sizes, switch
from dynbatch.kernels.images import Pair
from dynbatch.models.first_input import SizedByInput, WeightAndBias
from dynbatch.models.initial import Rng, generator, uniform_pair
from dynbatch.models.module import Module
from dynbatch.nodes.images.transposed_convolution import more_pixels
from dynbatch.nodes.images.windows import Padding, padding_of, pair
from dynbatch.nodes.node import Node


class ChannelConvolution(SizedByInput):
    """Base of convolutions with a weight (O, I / groups, …) and a bias (O,)."""

    groups: int

    def _make(
        self, inputs: int | None, outputs: int, kernel: tuple[int, ...], bias: bool, rng: Rng
    ) -> None:
        rng = generator(rng)

        def make(inputs: int) -> WeightAndBias:
            groups = _groups(self, self.groups, inputs, outputs)
            return uniform_pair(rng, (outputs, inputs // groups, *kernel), outputs, bias)

        self.weight, self.bias = self._pair_of_width(inputs, bias, make)


class Conv2d(ChannelConvolution):
    """Convolution of an image (H, W, I) -> (H', W', O), as `torch.nn.Conv2d`; see `F.conv2d`.

    Args:
        in_channels, out_channels: I and O; where I is None it is that of the first image, as of
            `Linear`.
        kernel_size: of a window, h and w: one number, or (height, width).
        stride, padding, dilation: likewise; padding "same" and "valid" are as of `F.conv2d`.
        groups: of channels, which divides I and O; I for a depthwise convolution.
        bias: whether b is there.
        rng:  generator or seed of the initial values, uniform in ±1/√(I / groups · h · w) as
            PyTorch's.

    Parameters: weight (O, I / groups, h, w), bias (O,).

    Raises:
        ArgumentError: a size is below 1, or groups does not divide I or O.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models, nodes as F
        >>> conv = models.Conv2d(3, 8, kernel_size=3, padding=1)
        >>> with db.Graph() as graph:
        ...     [conv(F.constant(graph, 1.0, (h, w, 3))).shape for h, w in ((28, 28), (5, 40))]
        [(28, 28, 8), (5, 40, 8)]
    """

    def __init__(
        self, in_channels: int | None, out_channels: int, kernel_size: int | Pair,
        stride: int | Pair = 1, padding: Padding = 0, dilation: int | Pair = 1,
        groups: int = 1, *, bias: bool = True, rng: Rng = None,
    ) -> None:  # fmt: skip
        inputs = self._width("in_channels", in_channels)
        sizes(self, out_channels=out_channels)
        self.groups = _groups(self, groups, inputs or 0, out_channels)
        switch(self, "bias", bias)
        kernel = pair("Conv2d", "kernel_size", kernel_size, 1)
        self.stride = pair("Conv2d", "stride", stride, 1)
        self.dilation = pair("Conv2d", "dilation", dilation, 1)
        front, _ = padding_of("Conv2d", padding, kernel, self.stride, self.dilation)
        self.padding: Padding = padding if isinstance(padding, str) else front
        self._make(inputs, out_channels, kernel, bias, rng)

    def __call__(self, x: Node) -> Node:
        if self._awaited is not None:
            self._see(x)
        return F.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class Conv1d(ChannelConvolution):
    """Convolution of a sentence (T, I) -> (T', O), as `torch.nn.Conv1d`; see `F.conv1d`.

    Args:
        in_channels, out_channels: I and O; where I is None it is that of the first sentence, as of
            `Linear`.
        kernel_size: of a window, k.
        stride, padding, dilation: in tokens; padding "same" and "valid" are as of `F.conv2d`.
        groups: of features, which divides I and O.
        bias: whether b is there.
        rng:  generator or seed of the initial values, uniform in ±1/√(I / groups · k) as PyTorch's.

    Parameters: weight (O, I / groups, k), bias (O,).

    Raises:
        ArgumentError: a size is below 1, or groups does not divide I or O.
    """

    def __init__(
        self, in_channels: int | None, out_channels: int, kernel_size: int,
        stride: int = 1, padding: int | Literal["same", "valid"] = 0, dilation: int = 1,
        groups: int = 1, *, bias: bool = True, rng: Rng = None,
    ) -> None:  # fmt: skip
        inputs = self._width("in_channels", in_channels)
        sizes(self, out_channels=out_channels, kernel_size=kernel_size)
        switch(self, "bias", bias)
        self.groups = _groups(self, groups, inputs or 0, out_channels)
        self.stride = size(self, "stride", stride)
        self.dilation = size(self, "dilation", dilation)
        kernel, step, apart = (1, kernel_size), (1, self.stride), (1, self.dilation)
        front, _ = padding_of("Conv1d", padding, kernel, step, apart, dims=1)
        self.padding = padding if isinstance(padding, str) else front[1]
        self._make(inputs, out_channels, (kernel_size,), bias, rng)

    def __call__(self, x: Node) -> Node:
        if self._awaited is not None:
            self._see(x)
        return F.conv1d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class ConvTranspose2d(Module):
    """Transposed convolution of an image (H, W, I) -> (H', W', O), as `torch.nn.ConvTranspose2d`.

    See `F.conv_transpose2d`.

    Args:
        in_channels, out_channels: I and O.
        kernel_size: of a window, h and w: one number, or (height, width).
        stride, padding, output_padding, dilation: likewise.
        groups: of channels, which divides I and O.
        bias: whether b is there.
        rng:  generator or seed of the initial values, uniform in ±1/√(O / groups · h · w) as
            PyTorch's.

    Parameters: weight (I, O / groups, h, w), bias (O,).

    Raises:
        ArgumentError: a size is below 1, groups does not divide I or O, or output_padding is as
            large as stride and dilation.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int | Pair,
        stride: int | Pair = 1, padding: int | Pair = 0, output_padding: int | Pair = 0,
        groups: int = 1, *, bias: bool = True, dilation: int | Pair = 1, rng: Rng = None,
    ) -> None:  # fmt: skip
        sizes(self, in_channels=in_channels, out_channels=out_channels)
        self.groups = _groups(self, groups, in_channels, out_channels)
        switch(self, "bias", bias)
        what = type(self).__name__
        kernel = pair(what, "kernel_size", kernel_size, 1)
        self.stride = pair(what, "stride", stride, 1)
        self.padding = pair(what, "padding", padding, 0)
        self.dilation = pair(what, "dilation", dilation, 1)
        self.output_padding = more_pixels(what, output_padding, self.stride, self.dilation)
        outputs = out_channels // self.groups
        shape = in_channels, outputs, *kernel
        self.weight, self.bias = uniform_pair(rng, shape, out_channels, bias)

    def __call__(self, x: Node) -> Node:
        return F.conv_transpose2d(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation,
        )  # fmt: skip


class MaxPool2d(Module):
    """The maximum of each window of an image, as `torch.nn.MaxPool2d`; see `F.max_pool2d`.

    Args:
        kernel_size, stride, padding, dilation: as of `F.max_pool2d`.
    """

    def __init__(
        self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
        dilation: int | Pair = 1,
    ) -> None:  # fmt: skip
        self.kernel_size, self.stride, self.padding = _pool(self, kernel_size, stride, padding)
        self.dilation = pair("MaxPool2d", "dilation", dilation, 1)

    def __call__(self, x: Node) -> Node:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation)


class AvgPool2d(Module):
    """The mean of each window of an image, as `torch.nn.AvgPool2d`; see `F.avg_pool2d`.

    Args:
        kernel_size, stride, padding: as of `F.avg_pool2d`.
    """

    def __init__(
        self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
    ) -> None:
        self.kernel_size, self.stride, self.padding = _pool(self, kernel_size, stride, padding)

    def __call__(self, x: Node) -> Node:
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding)


class Flatten(Module):
    """All elements of an image (H, W, C) as a vector (C · H · W,), as `torch.nn.Flatten`.

    They are in PyTorch's order, channel by channel, so that a linear layer after it has PyTorch's
    weights. That layer takes images of one size; of others the mean or maximum over all pixels,
    `F.mean(x, dim=(0, 1))`, has one width. A matrix (T, C) gives (C · T,).
    """

    def __call__(self, x: Node) -> Node:
        channels_first = F.transpose(F.reshape(x, (-1, x.width))) if x.ndim > 1 else x
        return F.reshape(channels_first, (x.rows * x.width,))


def _groups(owner: Module, groups: int, inputs: int, outputs: int) -> int:
    groups = size(owner, "groups", groups)
    if inputs % groups or outputs % groups:
        raise refused(
            type(owner).__name__, f"groups is {groups} for {inputs} and {outputs} channels",
            "groups divides in_channels and out_channels",
            f"groups={gcd(groups, inputs, outputs)}, or other numbers of channels",
        )  # fmt: skip
    return groups


def _pool(
    owner: Module, kernel_size: int | Pair, stride: int | Pair | None, padding: int | Pair
) -> tuple[Pair, Pair, Pair]:
    what = type(owner).__name__
    window = pair(what, "kernel_size", kernel_size, 1)
    step = window if stride is None else pair(what, "stride", stride, 1)
    return window, step, pair(what, "padding", padding, 0)
