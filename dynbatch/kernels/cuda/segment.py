"""Launches of `segment.cu`, for segments of rows."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.walks import over_segments, reduce_parts
from dynbatch.kernels.matrices import Matrices, Segments

NAMES: dict[np.ufunc, str] = {np.add: "sum", np.maximum: "max", np.minimum: "min"}


def reduce_segments(
    ufunc: np.ufunc, rows: Array, offsets: Segments, out: Array, empty: float
) -> None:
    """out[k] = the sum, maximum or minimum of segment k's rows; `empty` if it has none."""
    reduce = partial(_reduce, NAMES[ufunc], empty)
    reduce(*reduce_parts(rows, offsets, reduce), out)


def _reduce(name: str, empty: float, rows: Array, offsets: Segments, out: Array) -> None:
    kind = "matrices" if isinstance(offsets, Matrices) else "segments"
    over_segments(f"{name}_{kind}", (rows, out), offsets, out.shape[1], empty)
