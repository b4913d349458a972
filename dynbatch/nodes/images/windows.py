"""Windows that slide over the height and the width of an image: sizes, and what they require."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from dynbatch.arguments import is_integer, refused
from dynbatch.backend import Array
from dynbatch.kernels.images import Pair, Patches, count_patches, window_patches
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import INDEX_BYTES, Operation

Padding: TypeAlias = int | Pair | Literal["same", "valid", "causal"]
"""Pixels of zeros on either side; with "same" as many that y is as large as x, "valid" for none.

With "causal" as many, all of them before a sentence.
"""


class Sliding(Operation):
    """Base of convolutions and pools: a row of y for each window of x.

    H' = (H + padding + behind - dilation · (size - 1) - 1) // stride + 1, and W' likewise; both are
    1 or more. A sentence (T, C) is an image of one line.
    """

    __slots__ = ("padding", "sides", "stride")
    shape_fix: ClassVar[dict[str, str]] = {
        "x": "F.permute(x, (1, 2, 0)) brings an image of PyTorch's, (C, H, W), to this order;"
        " F.stack makes a sentence (T, C) of vectors",
        "I": "F.permute(x, (1, 2, 0)) if channels stand first in x, as in PyTorch",
        "groups · I": "groups that divide channels; F.permute(x, (1, 2, 0)) if these stand first",
    }
    dilation: Pair = (1, 1)
    padding: Pair
    behind: Pair | None = None  # padding below and to the right, where it is not `padding`
    sides: Pair  # height and width of x
    stride: Pair

    def kernel_size(self) -> Pair:
        raise NotImplementedError(f"{type(self).__name__}.kernel_size")

    @property
    def is_causal(self) -> bool:
        """Whether row t of a sentence sees that row of x and those before it, and has a value."""
        before = self.dilation[1] * (self.kernel_size()[1] - 1)
        is_before = self.padding == (0, before) and not any(self.behind or self.padding)
        return is_before and self.stride == (1, 1) and self.inputs[0].ndim == 2

    def follows_sizes(self) -> bool:
        return self.is_causal

    def check_shape(self, *shapes: Shape) -> Shape:
        """Height and width of y, or its length alone where x has one dimension beside its width.

        Raises:
            ShapeError: no window fits.
        """
        shape, dims = shapes[0], len(shapes[0]) - 1
        self.sides = (1, shape[0]) if dims == 1 else (shape[0], shape[1])
        kernel = self.kernel_size()
        padding = [a + b for a, b in zip(self.padding, self.behind or self.padding, strict=True)]
        how = zip(self.sides, kernel, self.stride, padding, self.dilation, strict=True)
        counts = [count_patches(*of_dim) for of_dim in how][2 - dims :]
        if min(counts) < 1 and not self.is_causal:  # which leaves an empty sentence empty
            extent = [
                d * (k - 1) + 1 - p for k, d, p in zip(kernel, self.dilation, padding, strict=True)
            ]
            least = tuple([max(1, n) for n in extent[2 - dims :]])
            of_what = "an image of at least H, W" if dims == 2 else "a sentence of at least T"
            self.refuse(
                f"the result would be empty: {_sides(shape[:-1])} is smaller than the window",
                f"{of_what} = {_sides(least)} for this size, padding and dilation",
                "more padding, a smaller window, or leave out what is so small",
            )
        return tuple(counts)

    @classmethod
    def patches(cls, batch: Batch) -> Patches:
        node: Sliding = batch.first
        return node.windows_of(np.array(batch.column("sides"), np.int64).reshape(-1, 2))

    def windows_of(self, sides: Array) -> Patches:
        """The windows of images, of whose x these are heights and widths, (K, 2)."""
        return window_patches(
            sides, self.kernel_size(), self.stride, self.padding, self.dilation, self.behind
        )

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return 6 * INDEX_BYTES * (len(batch.nodes) + 1)


def _sides(sizes: Shape) -> str:
    return " × ".join(map(str, sizes))


def pair(what: str, name: str, value: Any, least: int, dims: int = 2) -> Pair:
    """An argument that is one number, or one for the height and one for the width.

    Args:
        dims: 1 for a function of sentences: one number, and `least` for the height.

    Raises:
        ArgumentError: it is neither, or a number is below `least`.
    """
    numbers = tuple(value) if isinstance(value, tuple | list) else (value,) * dims
    are_numbers = all(map(is_integer, numbers))
    if len(numbers) != dims or not are_numbers or min(numbers) < least:
        form = "an integer, or two: (height, width)" if dims == 2 else "an integer"
        raise refused(
            what, f"{name} is {value!r}", f"{form}, {least} or more", f"{name}={max(least, 1)}"
        )
    if dims == 1:
        return (least, int(numbers[0]))
    return (int(numbers[0]), int(numbers[1]))


def padding_of(
    what: str, padding: Padding, kernel: Pair, stride: Pair, dilation: Pair, dims: int = 2
) -> tuple[Pair, Pair | None]:
    """The padding of a convolution in front, and behind where that is another.

    Raises:
        ArgumentError: it is neither numbers nor "same" or "valid", or "same" with a stride.
    """
    if not isinstance(padding, str):
        return pair(what, "padding", padding, 0, dims), None
    if padding == "valid":
        return (0, 0), None
    before = dilation[1] * (kernel[1] - 1)
    if padding == "causal" and dims == 1:
        return (0, before), (0, 0)
    if padding != "same":
        names = "'same', 'valid' or 'causal'" if dims == 1 else "'same' or 'valid'"
        raise refused(what, f"padding is {padding!r}", f"numbers, {names}", "padding='same'")
    if stride != (1, 1):
        raise refused(
            what, f"padding='same' with stride {stride}",
            "only windows one pixel apart are as many as pixels",
            "stride=1, or the padding in pixels",
        )  # fmt: skip
    height, width = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    front, behind = (height // 2, width // 2), (height - height // 2, width - width // 2)
    return front, None if behind == front else behind
