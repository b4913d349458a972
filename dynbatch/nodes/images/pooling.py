"""Pools of images of different sizes: one number for each window and channel."""

from __future__ import annotations

from dynbatch.arguments import refused
from dynbatch.kernels import images as kernels
from dynbatch.kernels.images import Pair
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.images.windows import Sliding, pair
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.shape.windows import KeepsPlaces
from dynbatch.ragged import Ragged


class Pooling2d(Sliding):
    """Base of pools.

    Batches with:  every other one of its type, window, stride, padding, dilation and C, whatever H
        and W.
    """

    __slots__ = ("dilation", "window")
    static = ("window", "stride", "padding", "dilation")
    shape_rule = "x (H, W, C) -> (H', W', C)"
    dilation: Pair
    window: Pair

    def kernel_size(self) -> Pair:
        return self.window

    def check_shape(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if not x[0] * x[1]:
            self.refuse(
                f"an image of shape {x}",
                "an image has at least one pixel",
                "leave out images without pixels",
            )
        sides = super().check_shape(x)
        how = zip(self.sides, self.padding, self.dilation, strict=True)
        if any([around and side < apart for side, around, apart in how]):
            self.refuse(
                f"the first window of an image of shape {x} holds no pixel",
                "a side with padding has as many pixels as its dilation",
                "less dilation, or no padding",
            )
        return sides


class MaxPooling2d(KeepsPlaces, Pooling2d):
    """The maximum of each window. The gradient goes to the first one, as in PyTorch.

    Keeps:  the position of each maximum, as large as the output; the input is free after forward.
    """

    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        places = cls.place(batch) if batch.keeps else None
        kernels.max_patches(xs[0].values, cls.patches(batch), y.values, places)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            pixels = cls.patches(batch).reversed()
            kernels.max_patches_backward(dy.values, pixels, cls.place(batch), dx.values)


class AvgPooling2d(Pooling2d):
    """The mean of each window; zeros of the padding count."""

    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        windows = cls.patches(batch)
        kernels.sum_patches(xs[0].values, windows, 1 / windows.positions, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            pixels = cls.patches(batch).reversed()
            kernels.sum_patches(dy.values, pixels, 1 / pixels.positions, dx.values)


def max_pool2d(
    x: Node, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
    dilation: int | Pair = 1,
) -> Node:  # fmt: skip
    """Maximum of each window, (H, W, C) -> (H', W', C), as `torch.nn.functional.max_pool2d`.

    H' = (H + 2 · padding - dilation · (size - 1) - 1) // stride + 1, W' likewise: what does not
    fill a window at the end is left out. The gradient goes to the first maximum, line by line.

    Args:
        kernel_size: of a window: one number, or (height, width).
        stride:      pixels from one window to the next; `kernel_size` if None.
        padding:     pixels on either side, which are no maximum; at most half of `kernel_size`.
        dilation:    pixels from one place of a window to the next.

    Raises:
        ShapeError:    x is not an image, has no pixel, or is smaller than a window; or a side with
            padding is smaller than the dilation, so that a window would hold no pixel.
        ArgumentError: a size, stride or dilation is below 1, or padding more than half of the size.
    """
    return _pooled("max_pool2d", MaxPooling2d, x, kernel_size, stride, padding, dilation)


def avg_pool2d(
    x: Node, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Node:
    """Mean of each window, (H, W, C) -> (H', W', C), as `torch.nn.functional.avg_pool2d`.

    Args:
        kernel_size, stride: as in `max_pool2d`.
        padding: pixels of zeros on either side, which count in the mean; at most half a window.

    Raises:
        As `max_pool2d`.
    """
    return _pooled("avg_pool2d", AvgPooling2d, x, kernel_size, stride, padding)


def _pooled(
    what: str, node_type: type[Pooling2d], x: Node, kernel_size: int | Pair,
    stride: int | Pair | None, padding: int | Pair, dilation: int | Pair = 1,
) -> Node:  # fmt: skip
    x = node_of(what, x)
    size = pair(what, "kernel_size", kernel_size, 1)
    around = pair(what, "padding", padding, 0)
    if any([2 * p > n for p, n in zip(around, size, strict=True)]):
        raise refused(
            what, f"padding {padding} for windows of {kernel_size}",
            "padding is at most half of kernel_size: every window then holds a pixel",
            "less padding, or larger windows",
        )  # fmt: skip
    step = size if stride is None else pair(what, "stride", stride, 1)
    return node_type(
        x, window=size, stride=step, padding=around, dilation=pair(what, "dilation", dilation, 1)
    )
