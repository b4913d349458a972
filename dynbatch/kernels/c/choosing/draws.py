"""`kernels.choosing.draws` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows

_library = Library("choosing/draws.c")


def cut_rows(x: Array, cuts: Array) -> Any:
    functions = _library.functions(x.dtype)
    if functions is None or not (is_packed(x) and is_packed(cuts)):
        return NotImplemented
    weights = np.empty_like(x if (cuts[:, 2:] != (1, 0)).any() else x[:0])
    given = address(x), address(cuts), address(weights)
    share_rows(functions.cut_rows, *x.shape, x.shape[1], *given)
    return None
