"""`kernels.images` in C: one pass over the patches, whose rows threads share."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.calls import print_call
from dynbatch.kernels.images import Patches
from dynbatch.kernels.runtime.dispatch import ROWS

_unfold, _sum_patches, _max_patches, _max_patches_backward = [
    print_call("images.c", name, ROWS, optional="argmax")
    for name in ("unfold", "sum_patches", "max_patches", "max_patches_backward")
]


def unfold(x: Array, patches: Patches, first: int, out: Array, groups: int = 1) -> Any:
    return _unfold(*patch_tables(patches), x, out, first, groups)


def sum_patches(x: Array, patches: Patches, factor: float, out: Array) -> Any:
    return _sum_patches(*patch_tables(patches), x, out, factor)


def max_patches(x: Array, patches: Patches, out: Array, argmax: Array | None) -> Any:
    return _max_patches(*patch_tables(patches), x, out, argmax)


def max_patches_backward(dy: Array, patches: Patches, argmax: Array, out: Array) -> Any:
    return _max_patches_backward(*patch_tables(patches), dy, out, argmax)


def patch_tables(patches: Patches) -> tuple[Array, Array]:
    """The images and the formula of patches, as patches.h reads them."""
    sides = np.zeros((len(patches.sides) + 1, 4), np.int64)
    sides[:-1] = patches.sides
    images = np.column_stack((patches.reads, sides[:, :2], patches.offsets, sides[:, 3]))
    return images, np.array(patches[1:], np.int64)
