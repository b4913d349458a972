"""Targets of padded sentences."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array

IGNORED = -100
"""A target that does not count: `ignore_index` of `F.cross_entropy`."""


def ignored_after(ids: Array, length: int) -> Array:
    """Targets whose first `length` count, and no other."""
    return np.where(np.arange(len(ids)) < length, ids, IGNORED)
