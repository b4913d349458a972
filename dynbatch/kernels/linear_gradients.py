"""Gradients of linear maps: of weights and biases, and of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import blas
from dynbatch.kernels.runtime.dispatch import HOST, kernel

# Rows of a product that are summed at once: they stay in the cache.
SUMMED_ROWS = 384


class MapGradient(NamedTuple):
    """The gradients of y = Σ_k x_k W_kᵀ + b, or of some columns of y.

    dy:      (N, O) that of y.
    bias:    (O,) where that of b goes, or None if nothing asks for it.
    weights: (O, I_k) where that of each W_k goes, or None.
    """

    dy: Array
    bias: Array | None
    weights: Sequence[Array | None]


@kernel(c=HOST)
def weight_gradients(xs: Sequence[Array], maps: Sequence[MapGradient], add: bool) -> None:
    """W_k's = dyᵀ x_k and b's = Σ_n dy[n], for several maps of the same inputs; threads share them.

    Args:
        xs:  of each input its last rows (M_k, I_k), M_k <= N; before them it is zero. Those of
             uint16 are the upper halves of bfloat16 numbers.
        add: to what is there.
    """
    for dy, bias, weights in maps:
        for x, weight in zip(xs, weights, strict=True):
            if weight is not None:
                blas.matmul_outer(x, dy[len(dy) - len(x) :], weight, add)
        if bias is not None:
            total = np.ones(len(dy), dy.dtype) @ dy
            np.add(total, bias, out=bias) if add else np.copyto(bias, total)


@kernel(c=HOST)
def scatter_products(
    products: Sequence[tuple[Array, Array, int]], start: Array | None, index: Array | None,
    out: Array, add: bool,
) -> None:  # fmt: skip
    """out[index[n]] = start[n] + Σ_k x_k[n] @ w_k, for x_k (N, K_k) and w_k (K_k, I_k).

    Args:
        products: x_k, w_k, and the first of the I_k columns that the product is added to.
        start:    (N, I), or None for zeros.
        index:    (N,) distinct rows of `out` (..., I); None is 0 … N - 1.
        add:      to what is there.
    """
    count = len(products[0][0] if start is None else start)
    for first in range(0, count, SUMMED_ROWS):
        rows = slice(first, min(first + SUMMED_ROWS, count))
        total = np.zeros((rows.stop - first, out.shape[1]), out.dtype)
        if start is not None:
            total[...] = start[rows]
        for x, weight, column in products:
            product = np.empty((len(total), weight.shape[1]), out.dtype)
            blas.matmul_rows(x[rows], weight, product)
            total[:, column : column + weight.shape[1]] += product
        places = rows if index is None else index[rows]
        out[places] = out[places] + total if add else total
