// Running sums within segments: the CUDA version of kernels/cumulative.py.

// out[n] = x[first] + ... + x[n] of the rows of a segment, or x[n] + ... + x[last] if `backwards`.
// May run in place. Block (32, 8); a warp has a segment, and a segment's warp
//
//     width 1     goes along it, 32 elements at a time: a scan of the lanes    grid (blocks)
//     else        has a lane for a column, which goes down its rows            grid (blocks, width / 32)
//     matrices    likewise, and has a tile of one                              grid (blocks)
extern "C" __global__ void cumsum_segments(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, bool backwards) {
    const Segments segments = {offsets, length, count, width};
    const int lane = threadIdx.x, column = blockIdx.y * WARP + lane;
    const int warp = blockIdx.x * blockDim.y + threadIdx.y, warps = gridDim.x * blockDim.y;
    // Goes down a column, from its first element on, of rows that are `across` wide.
    auto down = [&](long long begin, int rows, int across) {
        REAL sum = 0;
        for (int n = 0; n < rows; ++n) {
            const long long i = begin + (long long)(backwards ? rows - 1 - n : n) * across;
            sum += x[i];
            out[i] = sum;
        }
    };
    if (!width) {
        for (int tile = warp; tile < segments.matrix(count)[4]; tile += warps) {
            const int k = segments.find(4, tile, 0, count);
            const int* matrix = segments.matrix(k);
            const int inside = (tile - matrix[4]) * WARP + lane, across = matrix[3];
            const int rows = segments.start(k + 1) - segments.start(k);
            if (inside < across) down((long long)matrix[0] + inside, rows, across);
        }
        return;
    }
    for (int k = warp; k < count; k += warps) {
        const long long begin = segments.start(k);
        const int rows = segments.start(k + 1) - begin;
        if (width > 1) {
            if (column < width) down(begin * width + column, rows, width);
            continue;
        }
        auto row = [&](int n) { return begin + (backwards ? rows - 1 - n : n); };
        REAL before = 0;
        for (int first = 0; first < rows; first += WARP) {  // the same for the whole warp
            const int n = first + lane;
            REAL sum = n < rows ? x[row(n)] : (REAL)0;
            for (int distance = 1; distance < WARP; distance *= 2) {
                const REAL left = __shfl_up_sync(ALL_LANES, sum, distance);
                if (lane >= distance) sum += left;
            }
            sum += before;
            if (n < rows) out[row(n)] = sum;
            before = __shfl_sync(ALL_LANES, sum, WARP - 1);
        }
    }
}
