// Copies and sums of rows and rectangles: the CUDA versions of kernels/move.py and of the row
// kernels in kernels/segment.py. Rows of a matrix are taken by an index table; rectangles lie
// anywhere.

// target[n] = source[index[n]], n < rows.
//
// Block (columns, rows): 256 threads, as wide as a row needs. Grid (rows, columns) in blocks.
extern "C" __global__ void gather_rows(
    const REAL* rows, const int* index, REAL* out, int count, int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= count || column >= width) return;
    out[(long long)n * width + column] = rows[(long long)index[n] * width + column];
}

// Many gathers of rows in one launch. A row of `table` is one gather, in elements from `base`:
//
//     first  source  source_stride  other  other_stride  index  target  target_stride  width
//
// `first` counts the elements of the gathers before, and `index` is where its part of the indices
// begins; -1 takes row n of the source for row n, and -2 - index puts it into row indices[n] of the
// target, each n another. An other_stride of -1 stands for zeros. No target may be read or written by
// another gather. Block 256, grid total / TILE.
extern "C" __global__ void gather_many(
    REAL* base, const long long* table, const int* indices, int count, long long total) {
    constexpr int COLUMNS = 9;
    const long long begin = (long long)blockIdx.x * TILE, end = min(begin + TILE, total);
    const int low = find_segment(table, COLUMNS, 0, count, begin);
    const int high = find_segment(table, COLUMNS, low, count, end - 1) + 1;
#pragma unroll 1  // each has a search of its own
    for (long long e = begin + threadIdx.x; e < end; e += blockDim.x) {
        const long long* gather =
            table + (long long)find_segment(table, COLUMNS, low, high, e) * COLUMNS;
        const unsigned element = e - gather[0], width = gather[8];
        const unsigned n = element / width, column = element % width;
        const long long index = gather[5], first = index < -1 ? -2 - index : index;
        const long long row = first < 0 ? (long long)n : indices[first + n];
        const long long from = index < -1 ? n : row, to = index < -1 ? row : n;
        REAL found = 0;
        if (from >= 0) found = base[gather[1] + from * gather[2] + column];
        else if (gather[4] >= 0) found = base[gather[3] + (-1 - from) * gather[4] + column];
        base[gather[6] + to * gather[7] + column] = found;
    }
}

// Sums of source rows, each to one target row:
//
//     target[targets[k]] (+)= Σ source[sources[i]],  offsets[k] <= i < offsets[k + 1],  k < segments
//
// where (+)= adds if `accumulate`. Targets differ from each other, so no atomics are needed, and
// the order of the sum depends on a segment's length only. sources == NULL means sources[i] = i.
//
// Block (32, 8): a warp sums a short segment, 32 columns at a time; the 8 warps of a block share a
// long one, warp w taking rows w, w + 8, … Grid (blocks, columns / 32), where each block has
// segments / blocks of the segments, at most 8.
extern "C" __global__ void add_rows(const REAL* source, const int* sources, const int* offsets,
    const int* targets, REAL* target, int segments, int width, int accumulate) {
    constexpr int WARPS = 8, LONG = 32;
    __shared__ REAL partial[WARPS][WARP];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int column = blockIdx.y * WARP + lane;
    const bool inside = column < width;
    const int each = (segments + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * each, last = min(first + each, segments);

    auto sum = [&](int begin, int end, int step) {
        REAL total = 0;
        for (int i = begin; inside && i < end; i += step)
            total += source[(long long)(sources ? sources[i] : i) * width + column];
        return total;
    };
    auto store = [&](int k, REAL total) {
        REAL* to = target + (long long)targets[k] * width + column;
        if (inside) *to = accumulate ? *to + total : total;
    };

    const int own = first + warp;
    if (own < last && offsets[own + 1] - offsets[own] <= LONG)
        store(own, sum(offsets[own], offsets[own + 1], 1));
    for (int k = first; k < last; ++k) {
        const int begin = offsets[k], end = offsets[k + 1];
        if (end - begin <= LONG) continue;  // the same for the whole block
        partial[warp][lane] = sum(begin + warp, end, WARPS);
        __syncthreads();
        if (warp == 0) {
            REAL total = partial[0][lane];
            for (int w = 1; w < WARPS; ++w) total += partial[w][lane];
            store(k, total);
        }
        __syncthreads();  // the next long segment writes `partial` again
    }
}

// Rectangles of rows x width elements, one table row each, in elements of `source` and `target`:
//
//     first  source_start  source_stride  target_start  target_stride  width
//
// `first` counts the elements of the rectangles before; strides may be negative. Both kernels go
// through all elements of all rectangles, TILE (segments.cuh) to a block, whatever the shapes.
//
//     elements   |....TILE....|....TILE....|....TILE....|
//     rectangles |__0__|_1_|_______2_______|_3_|___4____|
//
// The block finds the rectangles of its first and last element (all threads read the same entries),
// so that a thread searches among those few only.
constexpr int RECTANGLE = 6;

template <class Body>
__device__ __forceinline__ void over_rectangles(
    const long long* table, int step, int count, long long total, Body body) {
    const long long begin = (long long)blockIdx.x * TILE, end = min(begin + TILE, total);
    const int low = find_segment(table, step, 0, count, begin);
    const int high = find_segment(table, step, low, count, end - 1) + 1;
#pragma unroll 1  // each has a search of its own
    for (long long e = begin + threadIdx.x; e < end; e += blockDim.x) {
        const int k = find_segment(table, step, low, high, e);
        body(table + (long long)k * step, (unsigned)(e - table[(long long)k * step]));
    }
}

// Copies every rectangle; no two may write the same place. Block 256, grid total / TILE.
extern "C" __global__ void copy_rectangles(
    const REAL* source, REAL* target, const long long* table, int count, long long total) {
    over_rectangles(table, RECTANGLE, count, total, [&](const long long* r, unsigned element) {
        const unsigned width = (unsigned)r[5], row = element / width, column = element % width;
        target[r[3] + row * r[4] + column] = source[r[1] + row * r[2] + column];
    });
}

// Adds to every rectangle of the target the sum of its sources, in their order:
//
//     pieces   first  target_start  target_stride  width  first_source  end_source
//     sources  start  stride
//
// No two pieces may share a place. Block 256, grid total / TILE.
extern "C" __global__ void add_rectangles(const REAL* source, REAL* target, const long long* pieces,
    const long long* sources, int count, long long total) {
    over_rectangles(pieces, RECTANGLE, count, total, [&](const long long* p, unsigned element) {
        const unsigned width = (unsigned)p[3], row = element / width, column = element % width;
        REAL* to = target + p[1] + row * p[2] + column;
        REAL sum = *to;
        for (long long s = p[4]; s < p[5]; ++s)
            sum += source[sources[2 * s] + row * sources[2 * s + 1] + column];
        *to = sum;
    });
}
