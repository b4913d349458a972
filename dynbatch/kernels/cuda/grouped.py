"""Products of groups of columns: one batched call of cuBLAS for all groups."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.arrays import add_bias
from dynbatch.kernels.cuda.blas import matmul_outer, matmul_rows, products


def matmul_groups(
    a: Array, b: Array, out: Array, bias: Array | None = None, transpose_b: bool = False
) -> None:
    """out_g = a_g @ b_g + bias_g, each b_g transposed on request."""
    factors = [b[g].T if transpose_b else b[g] for g in range(len(b))]
    if len(factors) == 1:
        matmul_rows(a, factors[0], out, bias)
        return
    products(_columns(a, len(b)), factors, _columns(out, len(b)))
    if bias is not None:
        add_bias(out, bias)


def outer_groups(x: Array, dy: Array, out: Array, add: bool = False) -> None:
    """out_g = dy_gᵀ x_g over all rows; with `add` they are added to `out`."""
    groups = len(out)
    if groups == 1:
        matmul_outer(x, dy, out[0], add=add)
        return
    left = [part.T for part in _columns(dy, groups)]
    products(left, _columns(x, groups), [out[g] for g in range(groups)], beta=int(add))


def _columns(matrix: Array, groups: int) -> list[Array]:
    width = matrix.shape[1] // groups
    return [matrix[:, g * width : (g + 1) * width] for g in range(groups)]
