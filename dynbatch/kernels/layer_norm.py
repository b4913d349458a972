"""Layer normalisation of packed rows; and RMS normalisation, which leaves their mean as it is.

Sums along a row are dot products (`np.vecdot`): three times as fast as `np.add.reduce`, and a row's
sum does not depend on the rows beside it, as it may in one matrix-vector product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import ELEMENTS, HOST, ROWS, kernel
from dynbatch.kernels.segment import blocks, share_blocks

# n follows from y = n ⊙ weight + bias to a few roundings where |bias| is up to so many |weight|.
MAX_SHIFT = 8.0
SMALLEST_WEIGHT = 1e-20  # below it y loses digits


@kernel(c=ROWS, cuda=HOST)
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


@dataclass(frozen=True)
class Normals:
    """n = (rows - shift) · factor: what `layer_norm` multiplied by the weight, made again.

    Args:
        rows:          (N, D): its input; or its output, so that no input is kept.
        shift, factor: of the input (N, 1), mean and rstd; of the output (D,), bias and 1/weight.
                       None for 0, and for 1.
        lost:          columns of the output from which n does not follow, whose factor is 0, and n
                       there (N, K).
    """

    rows: Array
    shift: Array | None
    factor: Array | None
    lost: tuple[Array, Array] | None = None

    def part(self, part: slice) -> Array:
        """(n, D) of some rows, a new array."""
        shift, factor = [
            array[part] if array is not None and array.ndim == 2 else array
            for array in (self.shift, self.factor)
        ]
        normal: Array = self.rows[part].copy() if shift is None else self.rows[part] - shift
        if factor is not None:
            np.multiply(normal, factor, out=normal)
        if self.lost is not None:
            columns, values = self.lost
            normal[:, columns] = values[part]
        return normal


def normals_of_output(
    y: Array, weight: Array | None, bias: Array | None, lost: tuple[Array, Array] | None
) -> Normals:
    """n = (y - bias) / weight."""
    if lost is None:
        if weight is None:
            return Normals(y, bias, None)
        factor = np.empty_like(weight)
        reciprocals(weight, factor)
        return Normals(y, bias, factor)
    with np.errstate(divide="ignore"):
        factor = np.ones(y.shape[1], y.dtype) if weight is None else 1 / weight
    factor[lost[0]] = 0
    return Normals(y, bias, factor, lost)


@kernel(c=ELEMENTS)
def reciprocals(x: Array, out: Array) -> None:
    """out = 1 / x."""
    np.divide(1, x, out=out)


def lost_columns(weight: Array | None, bias: Array | None, width: int) -> Array:
    """Columns whose n does not follow from y, as their weight is 0 or small beside their bias."""
    scale = np.ones(width) if weight is None else np.abs(weight)
    shift = np.zeros(width) if bias is None else np.abs(bias)
    kept = (MAX_SHIFT * scale >= shift) & (scale > SMALLEST_WEIGHT)  # false for NaN
    return np.flatnonzero(~kept)


@kernel(c=HOST, cuda=HOST)
def layer_norm_backward(
    dy: Array, normals: Normals, weight: Array | None, rstd: Array, is_centred: bool, out: Array,
    add: bool = False,
) -> None:  # fmt: skip
    """out = rstd · (g - mean(g) - n · mean(g ⊙ n)), with g = dy ⊙ weight.

    Args:
        weight:     (D,), or None for ones.
        rstd:       (N,), left by `layer_norm`.
        is_centred: whether it had a mean; without, mean(g) does not appear either.
        out:        (N, D), overwritten with the gradient of x; may be `dy`.
        add:        the gradient is added to `out`, which is not `dy` then.

    Memory: n and g of a block of rows.
    """
    width = dy.shape[1]
    ones = np.ones(width, dy.dtype)

    def work(part: slice) -> None:
        normal = normals.part(part)
        g = dy[part] if weight is None else dy[part] * weight
        along = np.vecdot(g, normal) / -width
        np.multiply(normal, along[:, None], out=normal)
        if is_centred:
            level = np.vecdot(g, ones) / width
            np.subtract(normal, level[:, None], out=normal)
        np.add(normal, g, out=normal)
        if add:
            out[part] += normal * rstd[part, None]
        else:
            np.multiply(normal, rstd[part, None], out=out[part])

    share_blocks(len(dy), width, work)


@kernel(c=HOST, cuda=HOST)
def layer_norm_parameters(
    dy: Array, normals: Normals, dweight: Array | None, dbias: Array | None, later: bool = False
) -> None:
    """dweight = Σ dy ⊙ n and dbias = Σ dy over all rows.

    Args:
        dweight, dbias: (D,), overwritten; None where it is not wanted.
        later: on a GPU they may be written with others, when the queue is settled.
    """
    parts, wanted = list(blocks(*dy.shape)), (dweight, dbias)
    if len(parts) == 1:
        sum_parameters(dy, normals, parts[0], *wanted)
        return
    sums = np.empty((2, len(parts), dy.shape[1]), dy.dtype)

    def work(number: int) -> None:
        of_part = [
            None if array is None else s[number] for array, s in zip(wanted, sums, strict=True)
        ]
        sum_parameters(dy, normals, parts[number], *of_part)

    # The sums of blocks are added in order: their bits do not depend on the threads.
    parallel.run_each(len(parts), work)
    for array, of_blocks in zip(wanted, sums, strict=True):
        if array is not None:
            np.add.reduce(of_blocks, axis=0, out=array)


def sum_parameters(
    dy: Array, normals: Normals, part: slice, dweight: Array | None, dbias: Array | None
) -> None:
    """`layer_norm_parameters` of some rows."""
    # A vector times the matrix: twice as fast as `np.add.reduce` down the columns.
    ones = np.ones(part.stop - part.start, dy.dtype)
    if dweight is not None:
        normal = normals.part(part)
        np.matmul(ones, np.multiply(normal, dy[part], out=normal), out=dweight)
    if dbias is not None:
        np.matmul(ones, dy[part], out=dbias)
