"""`kernels.attention.deferred` in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library

_library = Library("attention/deferred.c")


def step_products(
    weights: Sequence[Array], vectors: Sequence[Array], offsets: Array,
    out: Array | None, sums: Array | None = None,
) -> Any:  # fmt: skip
    functions = _library.functions(vectors[0].dtype)
    if functions is None or not is_packed(out, sums, *weights, *vectors):
        return NotImplemented
    counts = np.array([rows.shape[0] for rows in vectors], np.int64)
    places = [np.array([address(x) for x in arrays], np.int64) for arrays in (weights, vectors)]
    functions.step_products(
        0, int(counts[-1]), address(offsets), counts.size, address(counts),
        *[address(x) for x in places], vectors[0].shape[1], address(out), address(sums),
    )  # fmt: skip
    return None
