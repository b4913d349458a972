"""Matrix products of groups of columns, each with a factor of its own."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels import blas
from dynbatch.kernels.runtime.dispatch import HOST, kernel


@kernel(cuda=HOST)
def matmul_groups(
    a: Array, b: Array, out: Array, bias: Array | None = None, transpose_b: bool = False
) -> None:
    """out_g = a_g @ b_g + bias_g, where a, out and bias have the columns of all groups in order.

    Args:
        a:    (M, G · K), contiguous.
        b:    (G, K, N); with `transpose_b` (G, N, K), and its matrices are transposed.
        out:  (M, G · N), contiguous.
        bias: (G · N,).
    """
    inner, columns = a.shape[1] // len(b), out.shape[1] // len(b)
    for g, matrix in enumerate(b):
        wide = slice(g * columns, (g + 1) * columns)
        base, factor = None if bias is None else bias[wide], matrix.T if transpose_b else matrix
        blas.matmul_rows(a[:, g * inner : (g + 1) * inner], factor, out[:, wide], base)


@kernel(cuda=HOST)
def outer_groups(x: Array, dy: Array, out: Array, add: bool = False) -> None:
    """out_g = dy_gᵀ x_g over all rows: the gradient of `matmul_groups` by b, transposed.

    With `add` the products are added to `out`.

    Args:
        x:   (M, G · K), contiguous.
        dy:  (M, G · N), contiguous.
        out: (G, N, K), contiguous.
    """
    columns, inner = out.shape[1:]
    for g, gradient in enumerate(out):
        x_g, dy_g = x[:, g * inner : (g + 1) * inner], dy[:, g * columns : (g + 1) * columns]
        blas.matmul_outer(x_g, dy_g, gradient, add=add)
