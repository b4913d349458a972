// Filling, copying, repeating: the CUDA version of kernels/arrays.py.
//
// Kernels over `count` elements: block 256, grid count / 1024.

extern "C" __global__ void fill(REAL* out, REAL number, long long count) {
    map_elements(out, count, [=](long long) { return number; });
}

extern "C" __global__ void copy(const REAL* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return x[i]; });
}

extern "C" __global__ void copy_integers(const Index* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return (REAL)x[i]; });
}

extern "C" __global__ void accumulate(const REAL* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return out[i] + x[i]; });
}

// Calls body(row, column) for every element of a (count / width, width) matrix.
template <class Body>
__device__ __forceinline__ void over_matrix(unsigned width, long long count, Body body) {
    const long long begin = (long long)blockIdx.x * blockDim.x * EACH;
    const long long first = begin / width;  // the one division of 64 bits
    const unsigned before = begin - first * width;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const unsigned element = k * blockDim.x + threadIdx.x;
        if (begin + element < count)
            body(first + (before + element) / width, (before + element) % width);
    }
}

// Copies rows that lie source_stride elements apart to rows target_stride apart; a source_stride of
// 0 repeats a row. width < 2^31.
extern "C" __global__ void copy_rows(const REAL* source, long long source_stride, REAL* target,
    long long target_stride, unsigned width, long long count) {
    over_matrix(width, count, [=](long long row, unsigned column) {
        target[row * target_stride + column] = source[row * source_stride + column];
    });
}

extern "C" __global__ void add_bias(REAL* rows, const REAL* bias, unsigned width, long long count) {
    over_matrix(width, count,
        [=](long long row, unsigned column) { rows[row * width + column] += bias[column]; });
}

// out_i = numbers[k] * x_i, or x_i + numbers[k], for every element i of segment k. `out` may be x.
// Grid and block as for `over_elements`; so also `expand`.
extern "C" __global__ void scale_segments(const REAL* x, const REAL* numbers, REAL* out,
    const int* offsets, int length, int count, int width, long long total) {
    over_elements({offsets, length, count, width}, total,
        [=](int k, long long, int, long long i) { out[i] = numbers[k] * x[i]; });
}

extern "C" __global__ void shift_segments(const REAL* x, const REAL* numbers, REAL* out,
    const int* offsets, int length, int count, int width, long long total) {
    over_elements({offsets, length, count, width}, total,
        [=](int k, long long, int, long long i) { out[i] = x[i] + numbers[k]; });
}

// Row n of out, in segment k, is row k of x; or, where `column` is set, the one number x[k].
extern "C" __global__ void expand(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, long long total, bool column) {
    over_elements(
        {offsets, length, count, width}, total, [=](int k, long long, int d, long long i) {
            out[i] = column ? x[k] : x[(long long)k * width + d];
        });
}

// Transposes matrices that lie one after the other, each in its place. A row of `matrices` is
//
//     first tile    start    rows    columns
//
// and a block moves a tile of 32 x 32 elements through shared memory, so that it reads along rows
// and writes along columns. Tiles of a matrix are counted along its rows. Block (32, 8), grid
// tiles.
extern "C" __global__ void transpose_segments(
    const REAL* x, REAL* out, const long long* matrices, int count) {
    __shared__ REAL tile[WARP][WARP + 1];  // one more column, against bank conflicts
    const long long* matrix = matrices + 4LL * find_segment(matrices, 4, 0, count, blockIdx.x);
    const long long start = matrix[1], rows = matrix[2], columns = matrix[3];
    const long long number = blockIdx.x - matrix[0], across = (columns + WARP - 1) / WARP;
    const long long row = number / across * WARP, column = number % across * WARP;
    for (int r = threadIdx.y; r < WARP; r += blockDim.y)
        if (row + r < rows && column + threadIdx.x < columns)
            tile[r][threadIdx.x] = x[start + (row + r) * columns + column + threadIdx.x];
    __syncthreads();
    for (int c = threadIdx.y; c < WARP; c += blockDim.y)
        if (column + c < columns && row + threadIdx.x < rows)
            out[start + (column + c) * rows + row + threadIdx.x] = tile[threadIdx.x][c];
}
