// Products that cuBLAS does not do: of nothing, and of matrices that differ in shape.

// Zeros in all rows of `width` that are `ld` elements apart. Block (256), grid (total / 256) for
// `total` elements in all.
extern "C" __global__ void zero_rows(REAL* out, int width, long long ld, long long total) {
    const long long i = thread_in_grid();
    if (i < total) out[i / width * ld + i % width] = (REAL)0;
}

// out[k] = op(a[k]) op(b[k]) for matrices of different shapes, in one launch.
//
// `entries` has nine numbers for each of `count` products: the tiles of all outputs before this
// one, where a[k], b[k] and out[k] begin, the rows of out[k], the inner dimension, and how wide
// a[k], b[k] and out[k] are, which is how many elements their rows are apart.
//
// Block (64): makes SIDE x SIDE of one output, each thread 4 x 4 of them; grid (all tiles). A sum
// goes over the inner dimension in order.

constexpr int SIDE = 32, DEPTH = 16, ACROSS = 8, SUMS = SIDE / ACROSS;

// tile[d][i] = matrix[first + i][depth + d], or [depth + d][first + i] where `by_depth`, and 0
// outside. Neighbours in memory are read by neighbouring threads.
__device__ __forceinline__ void load(REAL (*tile)[SIDE + 1], const REAL* matrix, int width,
    bool by_depth, int first, int end, int depth, int inner) {
    for (int t = threadIdx.x; t < SIDE * DEPTH; t += blockDim.x) {
        const int d = by_depth ? t / SIDE : t % DEPTH, i = by_depth ? t % SIDE : t / DEPTH;
        const long long row = by_depth ? depth + d : first + i;
        const int column = by_depth ? first + i : depth + d;
        const bool inside = first + i < end && depth + d < inner;
        tile[d][i] = inside ? matrix[row * width + column] : (REAL)0;
    }
}

extern "C" __global__ void matmul_segments(const REAL* a, const REAL* b, REAL* out,
    const long long* entries, int count, bool transpose_a, bool transpose_b) {
    __shared__ REAL left[DEPTH][SIDE + 1], right[DEPTH][SIDE + 1];
    const long long* entry = entries + 9LL * find_segment(entries, 9, 0, count, blockIdx.x);
    const int rows = (int)entry[4], inner = (int)entry[5];
    const int width_a = (int)entry[6], width_b = (int)entry[7], width = (int)entry[8];
    const int tile = (int)(blockIdx.x - entry[0]), tiles_across = (width + SIDE - 1) / SIDE;
    const int first_row = tile / tiles_across * SIDE, first_column = tile % tiles_across * SIDE;
    const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    REAL sums[SUMS][SUMS] = {};

    for (int depth = 0; depth < inner; depth += DEPTH) {
        load(left, a + entry[1], width_a, transpose_a, first_row, rows, depth, inner);
        load(right, b + entry[2], width_b, !transpose_b, first_column, width, depth, inner);
        __syncthreads();
        for (int d = 0; d < DEPTH; ++d) {
            REAL column[SUMS];
#pragma unroll
            for (int j = 0; j < SUMS; ++j) column[j] = right[d][x + j * ACROSS];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const REAL value = left[d][y + i * ACROSS];
#pragma unroll
                for (int j = 0; j < SUMS; ++j) sums[i][j] += value * column[j];
            }
        }
        __syncthreads();  // the next round writes both tiles again
    }
    for (int i = 0; i < SUMS; ++i) {
        const int row = first_row + y + i * ACROSS;
        for (int j = 0; j < SUMS; ++j) {
            const int column = first_column + x + j * ACROSS;
            if (row < rows && column < width)
                out[entry[3] + (long long)row * width + column] = sums[i][j];
        }
    }
}
