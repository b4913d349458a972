"""Layer normalisation of packed rows; and RMS normalisation, which leaves their mean as it is.

Sums along a row are dot products (`np.vecdot`): three times as fast as `np.add.reduce`, and a row's
sum does not depend on the rows beside it, as it may in one matrix-vector product.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import has_cuda
from dynbatch.kernels.segment import blocks


@has_cuda()
def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float,
    out: Array, mean: Array | None, rstd: Array,
) -> None:  # fmt: skip
    """out = (x - mean) · rstd ⊙ weight + bias, with mean and 1/√(variance + eps) of each row.

    Args:
        weight:     (D,), or None for ones.
        bias:       (D,), or None for zeros.
        eps:        added to the variance, which divides by D.
        mean, rstd: (N,), overwritten; `layer_norm_backward` reads them. Without a mean nothing is
                    subtracted, and the mean square takes the place of the variance.

    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450; Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    width = x.shape[1]
    centred = x
    if mean is not None:
        np.vecdot(x, np.ones(width, x.dtype), out=mean)
        np.divide(mean, width, out=mean)
        centred = np.subtract(x, mean[:, None], out=out)
    np.vecdot(centred, centred, out=rstd)
    np.divide(rstd, width, out=rstd)
    np.add(rstd, eps, out=rstd)
    np.sqrt(rstd, out=rstd)
    np.divide(1, rstd, out=rstd)
    np.multiply(centred, rstd[:, None], out=out)
    if weight is not None:
        np.multiply(out, weight, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


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
    width = x.shape[1]
    ones = np.ones(width, x.dtype)
    for part in blocks(*x.shape):
        normal = _normal(x, mean, rstd, part)
        g = dy[part] if weight is None else dy[part] * weight
        along = np.vecdot(g, normal) / -width
        np.multiply(normal, along[:, None], out=normal)
        if mean is not None:
            level = np.vecdot(g, ones) / width
            np.subtract(normal, level[:, None], out=normal)
        np.add(normal, g, out=normal)
        np.multiply(normal, rstd[part, None], out=out[part])


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
    for array in (dweight, dbias):
        if array is not None:
            array[...] = 0
    for part in blocks(*x.shape):
        # A vector times the matrix: twice as fast as `np.add.reduce` down the columns.
        ones = np.ones(part.stop - part.start, dy.dtype)
        if dweight is not None:
            normal = _normal(x, mean, rstd, part)
            np.add(dweight, ones @ np.multiply(normal, dy[part], out=normal), out=dweight)
        if dbias is not None:
            np.add(dbias, ones @ dy[part], out=dbias)


def _normal(x: Array, mean: Array | None, rstd: Array, part: slice) -> Array:
    """n = (x - mean) · rstd for some rows."""
    normal: Array
    if mean is None:
        normal = x[part] * rstd[part, None]
    else:
        normal = x[part] - mean[part, None]
        np.multiply(normal, rstd[part, None], out=normal)
    return normal
