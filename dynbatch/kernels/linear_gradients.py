"""Gradients of linear maps: of weights and biases, and of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import blas
from dynbatch.kernels.runtime.dispatch import has_c

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


@has_c
def weight_gradients(xs: Sequence[Array], maps: Sequence[MapGradient], add: bool) -> None:
    """W_k's = dyᵀ x_k and b's = Σ_n dy[n], for several maps of the same inputs; threads share them.

    Args:
        xs:  of each input its last rows (M_k, I_k), M_k <= N; before them it is zero.
        add: to what is there.
    """
    for dy, bias, weights in maps:
        for x, weight in zip(xs, weights, strict=True):
            if weight is not None:
                blas.matmul_outer(x, dy[len(dy) - len(x) :], weight, add)
        if bias is not None:
            total = np.ones(len(dy), dy.dtype) @ dy
            np.add(total, bias, out=bias) if add else np.copyto(bias, total)


@has_c
def scatter_products(a: Array, b: Array, index: Array | None, out: Array, add: bool) -> None:
    """out[index[n]] = Σ_p a[p, n] @ b[p], for a (P, N, K), b (P, K, I); threads share the rows.

    Args:
        index: (N,) distinct rows of `out`; None is 0 … N - 1.
        add:   to what is there.
    """
    total, part = np.empty((2, min(SUMMED_ROWS, a.shape[1]), b.shape[2]), a.dtype)
    for start in range(0, a.shape[1], SUMMED_ROWS):
        rows = slice(start, min(start + SUMMED_ROWS, a.shape[1]))
        size = rows.stop - start
        for number, (factor, weight) in enumerate(zip(a, b, strict=True)):
            blas.matmul_rows(factor[rows], weight, (part if number else total)[:size])
            if number:
                np.add(total[:size], part[:size], out=total[:size])
        places = rows if index is None else index[rows]
        out[places] = out[places] + total[:size] if add else total[:size]
