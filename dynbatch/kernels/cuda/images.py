"""Launches of `images.cu`: patches of images of different sizes."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.arrays import transpose_segments
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.walks import over_elements
from dynbatch.kernels.images import Patches


def unfold(x: Array, patches: Patches, first: int, out: Array, groups: int = 1) -> None:
    _over_patches("unfold_patches", (x,), patches, first, out, groups)


def sum_patches(x: Array, patches: Patches, factor: float, out: Array) -> None:
    _over_patches("sum_patches", (x,), patches, 0, out, factor)


def max_patches(x: Array, patches: Patches, out: Array, argmax: Array | None) -> None:
    """out[m] = maximum of the rows of patch m, column by column, and at which position it is."""
    _over_patches("max_patches", (x, argmax), patches, 0, out)


def max_patches_backward(dy: Array, patches: Patches, argmax: Array, out: Array) -> None:
    _over_patches("max_patches_backward", (dy, argmax), patches, 0, out)


def swap_inner(x: Array, shape: tuple[int, int, int], out: Array) -> None:
    """out = x with its last two dimensions in each other's place, in one launch."""
    transpose_segments(x, [shape[1:]] * shape[0], out)


def _over_patches(
    name: str, arrays: tuple[Argument, ...], patches: Patches, first: int, out: Array,
    *more: Argument,
) -> None:  # fmt: skip
    """Launch a kernel of the patches first, …, first + len(out) - 1."""
    offsets, last = patches.offsets, first + len(out)
    low = int(np.searchsorted(offsets, first, "right")) - 1
    high = max(low, int(np.searchsorted(offsets, last)))
    begins = offsets[low:high]
    sides = patches.sides[low:high]
    images = np.column_stack(
        (patches.reads[low:high], sides[:, [0, 1, 3]], np.maximum(first - begins, 0))
    )
    within = np.clip(offsets[low : high + 1], first, last) - first
    how = np.array(patches[1:]).reshape(-1)
    over_elements(name, arrays, within, out, images, how, *more)
