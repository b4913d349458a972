"""`kernels.histories` in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library

_library = Library("histories.c")
_SCALAR = np.dtype(np.float32)  # no function of it reads one


def keys_of_calls(reads: Array, counts: Array, begins: Sequence[int], is_continued: bool) -> Any:
    functions = _library.functions(_SCALAR)
    if functions is None:
        return NotImplemented
    edges, keys = np.empty_like(reads), np.empty_like(counts)
    functions.keys_of_calls(
        counts.size, address(reads), address(counts), begins[0], begins[-1],
        len(begins) > 1, is_continued, address(edges), address(keys),
    )  # fmt: skip
    return edges, keys
