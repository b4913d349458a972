"""Sliding windows over a sentence's tokens: unfolded for convolutions, or pooled."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels import windows as kernels
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.ragged import Ragged


class Windowed(Operation):
    """Base of windows and pools: one row of y for each window of `size` tokens, `stride` apart.

    T' = (T + 2 · padding - size) // stride + 1 windows; none where a sentence is too short.
    """

    __slots__ = ("padding", "span", "stride")
    static = ("span", "stride", "padding")
    shape_fix = "F.stack vectors to rows first"
    span: int
    stride: int
    padding: int

    def follows_sizes(self) -> bool:
        return False

    def check_shape(self, *shapes: Shape) -> tuple[int]:
        if self.span < 1 or self.stride < 1 or not 0 <= self.padding < self.span:
            self.refuse(
                f"size {self.span}, stride {self.stride}, padding {self.padding}",
                "size >= 1, stride >= 1, 0 <= padding < size",
                "padding=size - 1 is the widest: every window then holds a token",
            )
        return (kernels.count_windows(shapes[0][0], self.span, self.stride, self.padding),)

    @classmethod
    def layout(cls, batch: Batch, x: Ragged, y: Ragged) -> kernels.WindowTable:
        """The positions in x of the windows that become rows of y."""
        node = batch.first
        return kernels.WindowTable(x.offsets, y.offsets, node.span, node.stride, node.padding)


class Windows(Windowed):
    """Each window's tokens side by side; padding counts as tokens of zeros.

    Batches with:  every other one of its width, size, stride and padding, whatever the lengths.
    """

    __slots__ = ()
    shape_rule = "x (T, D) -> (T', span · D)"
    only_moves = True

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        kernels.unfold(x.values, cls.layout(batch, x, y), y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            kernels.unfold_backward(dy.values, cls.layout(batch, dx, dy), dx.values)


class PoolWindows(Windowed):
    """Base of pools: one number for each window and feature.

    Batches with:  every other one of its type, width, size and stride, whatever the lengths.
    """

    __slots__ = ()
    shape_rule = "x (T, D) -> (T', D)"


class KeepsPlaces:
    """Base of maxima of windows, beside their pooling: forward leaves where each maximum was."""

    __slots__ = ()

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return {"place": (batch.rows, batch.first.width)}

    @classmethod
    def place(cls, batch: Batch) -> Array:
        """The saved positions: integers in the memory of floats."""
        saved = batch.saved["place"]
        return saved.view(f"i{saved.itemsize}")


class MaxPool(KeepsPlaces, PoolWindows):
    """The maximum of each window. The gradient goes to the first one, as in PyTorch.

    Keeps:  the position of each maximum, as large as the output.
    """

    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        places = cls.place(batch) if batch.keeps else None
        kernels.max_pool(xs[0].values, cls.layout(batch, xs[0], y), y.values, places)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            windows = cls.layout(batch, dx, dy)
            kernels.max_pool_backward(dy.values, windows, cls.place(batch), dx.values)


class MeanPool(PoolWindows):
    """The mean of each window."""

    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        kernels.mean_pool(xs[0].values, cls.layout(batch, xs[0], y), y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            kernels.mean_pool_backward(dy.values, cls.layout(batch, dx, dy), dx.values)


def windows(x: Node, size: int, stride: int = 1, padding: int = 0) -> Node:
    """Every `size` neighbouring tokens side by side, (T, D) -> (T', size · D).

    A linear map of it is a convolution over the sentence: `F.linear(F.windows(x, 3, padding=2), W)`
    with W (O, 3 · D) is `torch.nn.functional.conv1d` of W as (O, 3, D), its last two axes swapped.
    Where nothing but such maps reads the windows they are never stored, unless they are kept.

    Args:
        padding: tokens of zeros on either side, at most size - 1. With size - 1 even a sentence of
            one token has windows; without, a sentence shorter than `size` has none.

    Raises:
        ShapeError: x is not a matrix, or size, stride or padding is out of range.
    """
    return Windows(x, span=size, stride=stride, padding=padding)


def max_pool(x: Node, size: int, stride: int | None = None) -> Node:
    """Maximum of each window of `size` tokens, (T, D) -> (T', D): `torch.max_pool1d` over tokens.

    Args:
        stride: tokens from one window to the next; `size` if None. Tokens that do not fill a window
            at the end are left out: a sentence shorter than `size` gives (0, D).

    Raises:
        ShapeError: x is not a matrix, or size or stride is not positive.
    """
    return MaxPool(x, span=size, stride=size if stride is None else stride, padding=0)


def mean_pool(x: Node, size: int, stride: int | None = None) -> Node:
    """Mean of each window of `size` tokens, (T, D) -> (T', D): `torch.avg_pool1d` over tokens.

    Args:
        stride: as in `max_pool`.

    Raises:
        ShapeError: x is not a matrix, or size or stride is not positive.
    """
    return MeanPool(x, span=size, stride=size if stride is None else stride, padding=0)
