"""Launches of `layer_norm.cu`: layer and RMS normalisation of packed rows."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.joined.chained_norms import launch_after_chain
from dynbatch.kernels.cuda.joined.sums import sum_later
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.walks import (
    PART_OF_COLUMNS,
    ROWS_OF_BLOCK,
    THREADS,
    over_segments,
    parts_of_rows,
)
from dynbatch.kernels.layer_norm import Normals

WIDE = 1024  # rows beyond are a block's, not a warp's, as in layer_norm.cu


def layer_norm(
    x: Array, weight: Array, bias: Array, eps: float,
    out: Array, mean: Array | None, rstd: Array, kept: Array | None = None,
) -> None:  # fmt: skip
    outputs = (out, mean, rstd, kept)
    if not launch_after_chain(x, (weight, bias, eps), outputs, *_grid(x)):
        _over_rows("layer_norm", x, (x, weight, bias, eps, *outputs))


def layer_norm_backward(
    dy: Array, normals: Normals, weight: Array, rstd: Array, is_centred: bool, out: Array,
    add: bool = False,
) -> None:  # fmt: skip
    x, mean = normals.rows, normals.shift
    _over_rows("layer_norm_backward", x, (dy, x, weight, mean, rstd, out, add))


def layer_norm_parameters(
    dy: Array, normals: Normals, dweight: Array | None, dbias: Array | None, later: bool = False
) -> None:
    rows, width = dy.shape
    x, statistics = normals.rows, (normals.shift, normals.factor)
    wanted = (dweight, dbias)
    while rows > PART_OF_COLUMNS:
        parts = parts_of_rows(rows)
        rows = len(parts) - 1
        sums = [None if o is None else queue().empty((rows, width), dy.dtype) for o in wanted]
        over_segments("layer_norm_parameters", (dy, x, *statistics, *sums), parts, width)
        if later:
            for of_parts, out in zip(sums, wanted, strict=True):
                if of_parts is not None and out is not None:
                    sum_later(of_parts, out)
            return
        x, dy = [dy if of_parts is None else of_parts for of_parts in sums]
        statistics = None, None  # x and dy are sums of parts now
    arrays = (dy, x, *statistics, dweight, dbias)
    over_segments("layer_norm_parameters", arrays, np.array([0, rows]), width)


def _over_rows(name: str, x: Array, arguments: tuple[Argument, ...]) -> None:
    launch(x, name, *_grid(x), (*arguments, *x.shape))


def _grid(x: Array) -> tuple[tuple[int], tuple[int]]:
    rows, width = x.shape
    return (rows if width > WIDE else -(-rows // ROWS_OF_BLOCK),), (THREADS,)
