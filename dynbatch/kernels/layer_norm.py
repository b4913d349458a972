"""Layer normalisation of packed rows; and RMS normalisation, which leaves their mean as it is.

Sums along a row are dot products (`np.vecdot`): three times as fast as `np.add.reduce`, and a row's
sum does not depend on the rows beside it, as it may in one matrix-vector product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import has_cuda
from dynbatch.kernels.segment import blocks, share_blocks

Normals = Callable[[slice], Array]
"""Gives n, what `layer_norm` multiplies by the weight, for some of the rows, as a new array."""

# n follows from y = n ⊙ weight + bias to a few roundings where |bias| is up to so many |weight|.
MAX_SHIFT = 8.0
SMALLEST_WEIGHT = 1e-20  # below it y loses digits


@has_cuda()
def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float,
    out: Array, mean: Array | None, rstd: Array, kept: Array | None = None,
) -> None:  # fmt: skip
    """out = (x - mean) · rstd ⊙ weight + bias, with mean and 1/√(variance + eps) of each row.

    Args:
        weight:     (D,), or None for ones.
        bias:       (D,), or None for zeros.
        eps:        added to the variance, which divides by D.
        mean, rstd: (N,), overwritten; `layer_norm_backward` reads them. Without a mean nothing is
                    subtracted, and the mean square takes the place of the variance.
        kept:       (N, D), overwritten with x; None where no copy is wanted.

    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450; Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    width = x.shape[1]
    ones = np.ones(width, x.dtype)

    def work(part: slice) -> None:
        centred, y, scale = x[part], out[part], rstd[part]
        if kept is not None:
            np.copyto(kept[part], centred)
        if mean is not None:
            np.vecdot(centred, ones, out=mean[part])
            np.divide(mean[part], width, out=mean[part])
            centred = np.subtract(centred, mean[part, None], out=y)
        np.vecdot(centred, centred, out=scale)
        np.divide(scale, width, out=scale)
        np.add(scale, eps, out=scale)
        np.sqrt(scale, out=scale)
        np.divide(1, scale, out=scale)
        np.multiply(centred, scale[:, None], out=y)
        if weight is not None:
            np.multiply(y, weight, out=y)
        if bias is not None:
            np.add(y, bias, out=y)

    share_blocks(len(x), width, work)


@has_cuda()
def layer_norm_backward(
    dy: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, out: Array
) -> None:
    """out = rstd · (g - mean(g) - n · mean(g ⊙ n)), with n = (x - mean) · rstd, g = dy ⊙ weight.

    Args:
        weight:     (D,), or None for ones.
        mean, rstd: (N,), left by `layer_norm`. Without a mean, mean(g) does not appear either.
        out:        (N, D), overwritten with the gradient of x; may be `dy`.

    Memory: n and g of a block of rows.
    """
    normals = partial(_normal, x, mean, rstd)
    normal_backward(dy, normals, weight, rstd, mean is not None, out)


@has_cuda()
def layer_norm_parameters(
    dy: Array, x: Array, mean: Array | None, rstd: Array,
    dweight: Array | None, dbias: Array | None,
) -> None:  # fmt: skip
    """dweight = Σ dy ⊙ n and dbias = Σ dy over all rows, with n as in `layer_norm_backward`.

    Args:
        mean, rstd:     (N,), left by `layer_norm`.
        dweight, dbias: (D,), overwritten; None where it is not wanted.
    """
    normal_parameters(dy, partial(_normal, x, mean, rstd), dweight, dbias)


def _normal(x: Array, mean: Array | None, rstd: Array, part: slice) -> Array:
    """n = (x - mean) · rstd for some rows."""
    normal: Array
    if mean is None:
        normal = x[part] * rstd[part, None]
    else:
        normal = x[part] - mean[part, None]
        np.multiply(normal, rstd[part, None], out=normal)
    return normal


# From the output, without x ---------------------------------------------------------------------


def lost_columns(weight: Array | None, bias: Array | None, width: int) -> Array:
    """Columns whose n does not follow from y, as their weight is 0 or small beside their bias."""
    scale = np.ones(width) if weight is None else np.abs(weight)
    shift = np.zeros(width) if bias is None else np.abs(bias)
    kept = (MAX_SHIFT * scale >= shift) & (scale > SMALLEST_WEIGHT)  # false for NaN
    return np.flatnonzero(~kept)


def normals_of_columns(x: Array, mean: Array | None, rstd: Array, columns: Array) -> Array:
    """(N, K) n of some columns, for `normals_of_output`."""
    return _normal(x[:, columns], mean, rstd, slice(None))


def normals_of_output(
    y: Array, weight: Array | None, bias: Array | None, lost: tuple[Array, Array] | None
) -> Normals:
    """n = (y - bias) / weight.

    Args:
        lost: the columns where that is not so, and n there; None where there are none.
    """

    def normals(part: slice) -> Array:
        normal: Array = y[part].copy() if bias is None else y[part] - bias
        if weight is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                np.divide(normal, weight, out=normal)
        if lost is not None:
            columns, values = lost
            normal[:, columns] = values[part]
        return normal

    return normals


def normal_backward(
    dy: Array, normals: Normals, weight: Array | None, rstd: Array, is_centred: bool, out: Array
) -> None:
    """`layer_norm_backward` from n; without `is_centred`, mean(g) does not appear."""
    width = dy.shape[1]
    ones = np.ones(width, dy.dtype)

    def work(part: slice) -> None:
        normal = normals(part)
        g = dy[part] if weight is None else dy[part] * weight
        along = np.vecdot(g, normal) / -width
        np.multiply(normal, along[:, None], out=normal)
        if is_centred:
            level = np.vecdot(g, ones) / width
            np.subtract(normal, level[:, None], out=normal)
        np.add(normal, g, out=normal)
        np.multiply(normal, rstd[part, None], out=out[part])

    share_blocks(len(dy), width, work)


def normal_parameters(
    dy: Array, normals: Normals, dweight: Array | None, dbias: Array | None
) -> None:
    """`layer_norm_parameters` from n."""
    parts = list(blocks(*dy.shape))
    sums = np.zeros((2, len(parts), dy.shape[1]), dy.dtype)

    def work(number: int) -> None:
        # A vector times the matrix: twice as fast as `np.add.reduce` down the columns.
        part = parts[number]
        ones = np.ones(part.stop - part.start, dy.dtype)
        if dweight is not None:
            normal = normals(part)
            np.matmul(ones, np.multiply(normal, dy[part], out=normal), out=sums[0, number])
        if dbias is not None:
            np.matmul(ones, dy[part], out=sums[1, number])

    # The sums of blocks are added in order: their bits do not depend on the threads.
    parallel.run_each(len(parts), work)
    for array, of_blocks in zip((dweight, dbias), sums, strict=True):
        if array is not None:
            np.add.reduce(of_blocks, axis=0, out=array)
