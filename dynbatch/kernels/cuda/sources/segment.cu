// Reductions of segments, and back: the CUDA version of what kernels/segment.py has besides rows by
// index.

template <class Operation>
struct Reduction : Operation {
    typedef REAL State;
    const REAL* x;
    REAL* out;
    int width;
    REAL empty;

    __device__ __forceinline__ void add(REAL& state, Element at) const {
        state = Operation::combine(state, x[at.i]);
    }
    __device__ __forceinline__ void finish(REAL state, int k, int column, int rows) const {
        out[(long long)k * width + column] = rows ? state : empty;
    }
    __device__ __forceinline__ void write(REAL, long long) const {}
};

// out[k] = the sum, maximum or minimum of segment k of x, and `empty` where it has no rows. Grid and
// block as for `over_segments`. Of matrices of different widths, which few steps have, NAME_matrices
// does, a kernel of its own: it would be half of what the compiler has to do for the other.
extern "C" __global__ void sum_segments(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width, REAL empty) {
    over_rows(Reduction<Add>{{}, x, out, width, empty}, {offsets, length, count, width});
}

extern "C" __global__ void sum_matrices(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width, REAL empty) {
    over_matrices(Reduction<Add>{{}, x, out, width, empty}, {offsets, length, count, width});
}

extern "C" __global__ void max_segments(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width, REAL empty) {
    over_rows(Reduction<Max>{{}, x, out, width, empty}, {offsets, length, count, width});
}

extern "C" __global__ void max_matrices(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width, REAL empty) {
    over_matrices(Reduction<Max>{{}, x, out, width, empty}, {offsets, length, count, width});
}

extern "C" __global__ void min_segments(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width, REAL empty) {
    over_rows(Reduction<Min>{{}, x, out, width, empty}, {offsets, length, count, width});
}

extern "C" __global__ void min_matrices(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width, REAL empty) {
    over_matrices(Reduction<Min>{{}, x, out, width, empty}, {offsets, length, count, width});
}

// Sums of the rows of several matrices, each into an array of its own. A table row for each, places
// in elements from `base`:
//
//     first block    matrix    rows    width    sum
//
// Block 256, a column to a thread; grid: the blocks of all.
extern "C" __global__ void sum_parts(REAL* base, const long long* entries, int count) {
    enum { FIRST, MATRIX, ROWS, COLUMNS, SUM, ENTRY };
    const int k = find_segment(entries, ENTRY, 0, count, blockIdx.x);
    const long long* entry = entries + (long long)k * ENTRY;
    const int rows = entry[ROWS], width = entry[COLUMNS];
    const int column = ((int)blockIdx.x - (int)entry[FIRST]) * (int)blockDim.x + (int)threadIdx.x;
    if (column >= width) return;
    const REAL* part = base + entry[MATRIX] + column;
    REAL sum = 0;
#pragma unroll 4
    for (int n = 0; n < rows; ++n) sum += part[(long long)n * width];
    base[entry[SUM] + column] = sum;
}

// out[n] = values[k] for every row n of segment k. Grid and block as for `over_elements`.
extern "C" __global__ void spread_segments(const REAL* values, REAL* out, const int* offsets,
    int length, int count, int width, long long total) {
    over_elements(
        {offsets, length, count, width}, total, [&](int k, long long, int column, long long i) {
            out[i] = values[(long long)k * width + column];
        });
}
