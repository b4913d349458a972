"""`kernels.trees` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.trees import Tree

_library = Library("trees.c")
_SCALAR = np.dtype(np.float32)  # no function of it reads one


def bottom_up(heads: Array) -> Any:
    functions = _library.functions(_SCALAR)
    if functions is None:
        return NotImplemented
    table = np.empty((6, heads.size), np.int64)
    functions.bottom_up(heads.size, address(heads), address(table))
    order, counts, children, parents, places, _ = table
    return Tree(order, counts, children[:-1], parents[:-1]) if places[0] >= 0 else None
