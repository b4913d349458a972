"""Masks of attention as C reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.c.runtime.arrays import address

FAR = 1 << 30  # a distance that no sentence reaches, in 32 bits


def mask_table(masks: Sequence[Mask]) -> tuple[Array | None, list[Array]]:
    """(K, 4) left, right, address and row stride of each sentence's mask, and what it points to.

    There is no table where nothing is masked.
    """
    if all([mask is NO_MASK for mask in masks]):
        return None, []
    table, held = np.zeros((len(masks), 4), np.int64), []
    table[:, :2] = np.minimum([mask[:2] for mask in masks], FAR)
    for row, mask in zip(table, masks, strict=True):
        if mask.visible is not None and mask.visible.size:
            held.append(np.ascontiguousarray(mask.visible))
            row[2] = address(held[-1]) or 0
            row[3] = mask.visible.shape[1] if mask.visible.ndim == 2 else 0
    return table, held
