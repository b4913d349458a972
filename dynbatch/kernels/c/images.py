"""`kernels.images` in C: one pass over the patches, whose rows threads share."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows
from dynbatch.kernels.images import Patches

_library = Library("images.c")


def unfold(x: Array, patches: Patches, first: int, out: Array, groups: int = 1) -> Any:
    return _over_patches("unfold", x, patches, out, first, groups)


def sum_patches(x: Array, patches: Patches, factor: float, out: Array) -> Any:
    return _over_patches("sum_patches", x, patches, out, factor)


def max_patches(x: Array, patches: Patches, out: Array, argmax: Array | None) -> Any:
    return _with_places("max_patches", x, patches, out, argmax)


def max_patches_backward(dy: Array, patches: Patches, argmax: Array, out: Array) -> Any:
    return _with_places("max_patches_backward", dy, patches, out, argmax)


def _with_places(name: str, x: Array, patches: Patches, out: Array, argmax: Array | None) -> Any:
    if argmax is None:
        return _over_patches(name, x, patches, out, None, 0)
    if argmax.dtype != f"i{x.itemsize}":
        return NotImplemented
    places = argmax.view(x.dtype)
    if not has_rows(x, places):
        return NotImplemented
    return _over_patches(name, x, patches, out, address(places), row_stride(places))


def _over_patches(name: str, x: Array, patches: Patches, out: Array, *more: float | None) -> Any:
    functions = _library.functions(x.dtype)
    if functions is None or not has_rows(x, out):
        return NotImplemented
    images, how = patch_tables(patches)
    work = patches.positions * x.shape[1]
    share_rows(
        getattr(functions, name), len(out), work, x.shape[1], address(images), address(how),
        address(x), row_stride(x), address(out), row_stride(out), *more, alive=(images, how),
    )  # fmt: skip
    return None


def patch_tables(patches: Patches) -> tuple[Array, Array]:
    """The images and the formula of patches, as patches.h reads them."""
    sides = np.zeros((len(patches.sides) + 1, 4), np.int64)
    sides[:-1] = patches.sides
    images = np.column_stack((patches.reads, sides[:, :2], patches.offsets, sides[:, 3]))
    return images, np.array(patches[1:], np.int64)
