"""NumPy's functions of counts and row numbers, on processors of 32 bits too.

Counts, offsets and ids are int64 everywhere. Where an address has 32 bits, as in WebAssembly, NumPy
refuses them as counts and indices, which there are int32; indexing itself, `x[rows]`, takes both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from dynbatch.backend import Array

Function = TypeVar("Function", bound=Callable[..., Any])


def narrowed(indices: Any) -> Array:
    """Counts or indices as NumPy's own type of them; the array itself where it is of that type."""
    return np.asarray(indices).astype(np.intp, copy=False)


def _of_indices(function: Function, position: int) -> Function:
    """The function, with the argument at a position narrowed where NumPy refuses 64 bits."""
    if np.dtype(np.intp) == np.int64:
        return function

    @wraps(function)
    def of_narrowed(*args: Any, **kwargs: Any) -> Any:
        rest = args[position + 1 :]
        return function(*args[:position], narrowed(args[position]), *rest, **kwargs)

    return of_narrowed  # type: ignore[return-value]


bincount = _of_indices(np.bincount, 0)
repeat = _of_indices(np.repeat, 1)
take = _of_indices(np.take, 1)
