"""`kernels.segment` in C, where a function has a ufunc's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import segment as kernels
from dynbatch.kernels.c.runtime.calls import call_of, print_call
from dynbatch.kernels.runtime.dispatch import SEGMENTS


def _calls(*ufuncs: np.ufunc) -> dict[np.ufunc, Callable[..., Any]]:
    return {ufunc: print_call("segment.c", ufunc.__name__, SEGMENTS) for ufunc in ufuncs}


_reductions = _calls(np.add, np.maximum, np.minimum)
_combinations = _calls(np.subtract, np.multiply)
_first_in_segments = call_of(kernels.first_in_segments, SEGMENTS)


def reduce_segments(ufunc: np.ufunc, rows: Array, offsets: Array, out: Array, empty: float) -> Any:
    call = _reductions.get(ufunc)
    return call(offsets, rows, out, empty) if call else NotImplemented


def combine_segments(
    ufunc: np.ufunc, rows: Array, values: Array, offsets: Array, out: Array
) -> Any:
    call = _combinations.get(ufunc)
    return call(offsets, rows, values, out) if call else NotImplemented


def first_in_segments(rows: Array, values: Array, offsets: Array, out: Array) -> Any:
    if values.shape[1] == 1:  # NumPy's search of contiguous rows is as fast
        return NotImplemented
    return _first_in_segments(rows, values, offsets, out)
