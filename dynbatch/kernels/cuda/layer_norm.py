"""Launches of `layer_norm.cu`: layer normalisation of packed rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.segments import (
    PART_OF_COLUMNS,
    ROWS_OF_BLOCK,
    THREADS,
    over_segments,
    split_segments,
)

WIDE = 1024  # rows beyond are a block's, not a warp's, as in layer_norm.cu


def layer_norm(x: Any, weight: Any, bias: Any, eps: float, out: Any, mean: Any, rstd: Any) -> None:
    """out = (x - mean) · rstd ⊙ weight + bias, with mean and 1/√(variance + eps) of each row."""
    _over_rows("layer_norm", x, (x, weight, bias, eps, out, mean, rstd))


def layer_norm_backward(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, out: Any) -> None:
    """out = rstd · (g - mean(g) - n · mean(g ⊙ n)), with n = (x - mean) · rstd, g = dy ⊙ weight."""
    _over_rows("layer_norm_backward", x, (dy, x, weight, mean, rstd, out))


def layer_norm_parameters(dy: Any, x: Any, mean: Any, rstd: Any, dweight: Any, dbias: Any) -> None:
    """dweight = Σ dy ⊙ n and dbias = Σ dy over all rows."""
    rows, width = dy.shape
    while rows > PART_OF_COLUMNS:
        parts, _ = split_segments(np.array([0, rows]), PART_OF_COLUMNS)
        rows = len(parts) - 1
        sums = [queue().empty((rows, width), dy.dtype) for _ in range(2)]
        over_segments("layer_norm_parameters", (dy, x, mean, rstd, *sums), parts, width)
        (x, dy), mean, rstd = sums, None, None
    arrays = (dy, x, mean, rstd, dweight, dbias)
    over_segments("layer_norm_parameters", arrays, np.array([0, rows]), width)


def _over_rows(name: str, x: Any, arguments: tuple[Any, ...]) -> None:
    rows, width = x.shape
    blocks = rows if width > WIDE else -(-rows // ROWS_OF_BLOCK)
    launch(x, name, (blocks,), (THREADS,), (*arguments, rows, width))
