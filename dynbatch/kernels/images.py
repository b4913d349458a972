"""Patches of images of different sizes: unfolded for convolutions, or pooled.

An image is height · width rows, line by line. Each kernel makes a row of the result from a patch of
rows of what it reads, position by position; what lies beyond the edge is left out. A gradient has
the same form, read the other way: a pixel's patch is the windows that hold it. So no thread adds to
what another writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.segment import blocks
from dynbatch.ragged import offsets_of

Pair = tuple[int, int]
"""A number for the height, and one for the width."""


def count_patches(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """The number of windows of `kernel` pixels that fit side by side; 0 where none does.

    Args:
        padding: pixels of both sides together.
    """
    return max(0, (size + padding - dilation * (kernel - 1) - 1) // stride + 1)


class Patches(NamedTuple):
    """The row at each position of each patch.

    Patch (y, x) of image k has at its position (i, j) the pixel (v, w) of what is read, where
    v · divisor = y · step + offset + i · dilation, and w likewise; none if there is no such pixel.

    sides:  (K, 4) int64, height and width of each image that is read, and of its patches.
    kernel: positions of a patch, down and across.
    step, offset, dilation, divisor: of the formula, for the height and for the width.
    """

    sides: Array
    kernel: Pair
    step: Pair
    offset: Pair
    dilation: Pair
    divisor: Pair = (1, 1)

    @property
    def positions(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def are_rows(self) -> bool:
        """Whether the patches are the rows that are read, each once and in order."""
        is_same = self.step == self.divisor == (1, 1) and not any(self.offset)
        return is_same and self.positions == 1

    @property
    def reads(self) -> Array:
        """(K + 1,) rows of each image that is read, from 0 to N."""
        return _ends(self.sides[:, 0] * self.sides[:, 1])

    @property
    def offsets(self) -> Array:
        """(K + 1,) patches of each image, from 0 to M."""
        return _ends(self.sides[:, 2] * self.sides[:, 3])

    def reversed(self) -> Patches:
        """The patches that read each row, at the same positions."""
        (a, b), (c, d) = self.offset, self.dilation
        sides = self.sides[:, [2, 3, 0, 1]]
        return Patches(sides, self.kernel, self.divisor, (-a, -b), (-c, -d), self.step)

    def rows(self, part: slice) -> Iterator[Array]:
        """The rows of some patches at each position, (n,) int64; -1 where there is none."""
        offsets = self.offsets
        patches = np.arange(part.start, part.stop)
        image = np.searchsorted(offsets, patches, "right") - 1
        height, width, _, across = self.sides[image].T
        y, x = np.divmod(patches - offsets[image], across)
        start = self.reads[image]
        y, x = y * self.step[0] + self.offset[0], x * self.step[1] + self.offset[1]
        for i in range(self.kernel[0]):
            line, is_line = _placed(y + i * self.dilation[0], self.divisor[0], height)
            for j in range(self.kernel[1]):
                column, is_column = _placed(x + j * self.dilation[1], self.divisor[1], width)
                yield np.where(is_line & is_column, start + line * width + column, -1)


def window_patches(
    sides: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1),
    behind: Pair | None = None,
) -> Patches:  # fmt: skip
    """The patches that are windows sliding over images.

    Args:
        sides:   (K, 2) height and width of each image.
        padding: above and to the left.
        behind:  padding below and to the right; None for as much.
    """
    both_sides = [a + b for a, b in zip(padding, behind or padding, strict=True)]
    counts = [
        [count_patches(n, *how) for n in column]
        for column, how in zip(
            sides.T.tolist(), zip(kernel, stride, both_sides, dilation, strict=True), strict=True
        )
    ]
    both = np.column_stack((sides, *counts)).astype(np.int64)
    return Patches(both, kernel, stride, (-padding[0], -padding[1]), dilation)


def _ends(counts: Array) -> Array:
    return offsets_of(counts)


def _placed(numbers: Array, divisor: int, size: Array) -> tuple[Array, Array]:
    if divisor == 1:
        return numbers, (numbers >= 0) & (numbers < size)
    whole, rest = np.divmod(numbers, divisor)
    return whole, (rest == 0) & (whole >= 0) & (whole < size)


@kernel(c=HOST, cuda=HOST)
def unfold(x: Array, patches: Patches, first: int, out: Array, groups: int = 1) -> None:
    """out[m] = the rows of patch first + m side by side; zeros where there is none.

    Args:
        x:      (N, C).
        out:    (n, positions · C), n at most M - first.
        groups: of columns of x. The first group of all positions comes first, then the second.
    """
    width = x.shape[1] // groups
    parts = out.reshape(len(out), groups, patches.positions, width)
    x = x.reshape(len(x), groups, width)
    for part in blocks(len(out), groups * width):
        into = parts[part]
        for position, rows in enumerate(patches.rows(slice(first + part.start, first + part.stop))):
            held = rows >= 0
            if held.all():
                into[:, :, position] = x[rows]
            else:
                into[:, :, position] = 0
                into[held, :, position] = x[rows[held]]


@kernel(c=HOST, cuda=HOST)
def sum_patches(x: Array, patches: Patches, factor: float, out: Array) -> None:
    """out[m] = factor · the sum of the rows of patch m."""
    for part in blocks(*out.shape):
        y = out[part]
        y[...] = 0
        for rows in patches.rows(part):
            held = np.flatnonzero(rows >= 0)
            y[held] += x[rows[held]]
        np.multiply(y, y.dtype.type(factor), out=y)


@kernel(c=HOST, cuda=HOST)
def max_patches(x: Array, patches: Patches, out: Array, argmax: Array | None) -> None:
    """out[m] = maximum of the rows of patch m, column by column.

    Args:
        patches: each with a row at least.
        argmax:  (M, C) integers as wide as x's elements, overwritten with the first maximum's
            position, or None.
    """
    for part in blocks(*out.shape):
        y = out[part]
        largest_at = np.empty(y.shape, f"i{y.itemsize}") if argmax is None else argmax[part]
        y[...], largest_at[...] = -np.inf, 0
        is_new = np.ones(len(y), bool)
        for position, rows in enumerate(patches.rows(part)):
            held = np.flatnonzero(rows >= 0)
            first = held[is_new[held]]
            largest_at[first] = position
            is_new[first] = False
            values, so_far = x[rows[held]], y[held]
            # A later position is the larger number. The first NaN is the maximum.
            is_larger = ~(values <= so_far) & (so_far == so_far)  # not NaN
            later = is_larger * largest_at.dtype.type(position)
            largest_at[held] = np.maximum(largest_at[held], later)
            y[held] = np.maximum(so_far, values)


@kernel(c=HOST, cuda=HOST)
def max_patches_backward(dy: Array, patches: Patches, argmax: Array, out: Array) -> None:
    """out[n] = sum of dy over the patches whose maximum is in row n, column by column.

    Args:
        patches: those of `max_patches`, reversed.
        argmax:  from there.
    """
    for part in blocks(*out.shape):
        dx = out[part]
        dx[...] = 0
        for position, rows in enumerate(patches.rows(part)):
            held = np.flatnonzero(rows >= 0)
            dx[held] += dy[rows[held]] * (argmax[rows[held]] == position)


@kernel(cuda=HOST)
def swap_inner(x: Array, shape: tuple[int, int, int], out: Array) -> None:
    """out = x with its last two dimensions in each other's place.

    Args:
        x, out: flat.
        shape:  of x.
    """
    a, b, c = shape
    np.copyto(out.reshape(a, c, b), x.reshape(shape).swapaxes(1, 2))
