"""`few_rows_product`: x Wᵀ of few rows as a kernel of our own, which a CUDA graph may hold.

CuPy lets no product of cuBLAS be captured. So in a step that is replayed (`replays.py`), a product
of at most `replays.MOST_ROWS` rows is this kernel, whose tiles are those of a scan's step
(`tile_product.cuh`). A row's bits depend neither on the rows beside it nor on their number.
"""

from __future__ import annotations

from functools import cache

from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS

TILE_ROWS, TILE_COLUMNS, THREADS = 16, 32, 512  # as in tile_product.cuh

KERNEL = """#define FACTOR_BITS {bits}
#include "tile_product.cuh"

// out (rows, width) = x Wᵀ, or out + x Wᵀ, of x (rows, depth) and W (width, depth), whose rows are
// so many numbers apart: block 512, grid (rows / 16, width / 32). Blocks of the same columns follow
// one another, so that the weights which one has read lie in the cache for the others.
extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2) {name}(
    const REAL* x, int x_step, const REAL* w, int w_step, REAL* out, int out_step, bool adds,
    int rows, int width, int depth) {{
    __shared__ __align__(16) REAL shared[TILE_SHARED];
    const int first_row = blockIdx.x * TILE_ROWS, first = blockIdx.y * TILE_COLUMNS;
    TileSums sums = {{}};
    multiply_tile<true, 1>(
        sums, shared, depth, rows - first_row,
        [&](int r) -> const REAL* {{ return x + (long long)(first_row + r) * x_step; }},
        [&](int c) -> const REAL* {{
            return first + c < width ? w + (long long)(first + c) * w_step : nullptr;
        }});
    share_tile(sums, shared);
    for (int at = threadIdx.x; at < TILE_ROWS * TILE_COLUMNS; at += TILE_THREADS) {{
        const int r = at / TILE_COLUMNS, c = at % TILE_COLUMNS;
        if (first_row + r >= rows || first + c >= width) continue;
        REAL* sum = out + (long long)(first_row + r) * out_step + first + c;
        *sum = (adds ? *sum : (REAL)0) + tile_sum(shared, r, c);
    }}
}}
"""


@cache
def few_rows_product(precision: str = FULL) -> tuple[str, CudaSource]:
    """The kernel's name and source, with factors rounded to a precision."""
    bits = MANTISSA_BITS[precision]
    name = "few_rows_product" if precision == FULL else f"few_rows_product_{precision}"
    return name, join(f"{name}.cu", KERNEL.format(bits=bits, name=name))


def grid_of(rows: int, width: int) -> tuple[int, int]:
    return -(-rows // TILE_ROWS), -(-width // TILE_COLUMNS)
