"""Launches of `layer_norm.cu`: layer and RMS normalisation of packed rows."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.walks import (
    PART_OF_COLUMNS,
    ROWS_OF_BLOCK,
    THREADS,
    over_segments,
    split_segments,
)
from dynbatch.kernels.layer_norm import Normals

WIDE = 1024  # rows beyond are a block's, not a warp's, as in layer_norm.cu


def layer_norm(
    x: Array, weight: Array, bias: Array, eps: float,
    out: Array, mean: Array | None, rstd: Array, kept: Array | None = None,
) -> None:  # fmt: skip
    """out = (x - mean) · rstd ⊙ weight + bias, with mean and 1/√(variance + eps) of each row."""
    _over_rows("layer_norm", x, (x, weight, bias, eps, out, mean, rstd, kept))


def layer_norm_backward(
    dy: Array, normals: Normals, weight: Array, rstd: Array, is_centred: bool, out: Array,
    add: bool = False,
) -> None:  # fmt: skip
    """out = rstd · (g - mean(g) - n · mean(g ⊙ n)), with n = (x - mean) · rstd, g = dy ⊙ weight."""
    x, mean = normals.rows, normals.shift
    _over_rows("layer_norm_backward", x, (dy, x, weight, mean, rstd, out, add))


def layer_norm_parameters(dy: Array, normals: Normals, dweight: Array, dbias: Array) -> None:
    """dweight = Σ dy ⊙ n and dbias = Σ dy over all rows."""
    rows, width = dy.shape
    x, statistics = normals.rows, (normals.shift, normals.factor)
    while rows > PART_OF_COLUMNS:
        parts, _ = split_segments(np.array([0, rows]), PART_OF_COLUMNS)
        rows = len(parts) - 1
        sums = [queue().empty((rows, width), dy.dtype) for _ in range(2)]
        over_segments("layer_norm_parameters", (dy, x, *statistics, *sums), parts, width)
        (x, dy), statistics = sums, (None, None)  # x and dy are sums of parts now
    arrays = (dy, x, *statistics, dweight, dbias)
    over_segments("layer_norm_parameters", arrays, np.array([0, rows]), width)


def _over_rows(name: str, x: Array, arguments: tuple[Argument, ...]) -> None:
    rows, width = x.shape
    blocks = rows if width > WIDE else -(-rows // ROWS_OF_BLOCK)
    launch(x, name, (blocks,), (THREADS,), (*arguments, rows, width))
