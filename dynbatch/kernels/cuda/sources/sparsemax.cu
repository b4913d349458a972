// Sparsemax within segments, column by column: the CUDA version of kernels/sparsemax.py.
//
// x, y, dy, out are (N, width); out may be x. Block (32, 8); a warp has a segment, and of it
//
//     width 1     its lanes share the elements                     grid (blocks)
//     else        a lane has a column                              grid (blocks, width / 32)
//     matrices    likewise, and the warp has a tile of a matrix    grid (blocks)

// What one lane sees of a segment and column: all rows, or, if `is_shared`, one in 32.
struct Column {
    long long begin;
    int rows, across;
    bool is_shared;

    template <class Work> __device__ __forceinline__ void each(Work work) const {
        for (int n = is_shared ? threadIdx.x : 0; n < rows; n += is_shared ? WARP : 1)
            work(begin + (long long)n * across);
    }
    template <class Operation> __device__ __forceinline__ REAL combined(REAL value) const {
        return is_shared ? warp_reduce<Operation>(value) : value;
    }
};

template <class Work>
__device__ __forceinline__ void over_columns(Segments segments, Work work) {
    const int lane = threadIdx.x, column = blockIdx.y * WARP + lane, width = segments.width;
    const int warp = blockIdx.x * blockDim.y + threadIdx.y, warps = gridDim.x * blockDim.y;
    if (!width) {
        for (int tile = warp; tile < segments.matrix(segments.count)[4]; tile += warps) {
            const int k = segments.find(4, tile, 0, segments.count);
            const int* matrix = segments.matrix(k);
            const int inside = (tile - matrix[4]) * WARP + lane, across = matrix[3];
            const int rows = segments.start(k + 1) - segments.start(k);
            if (inside < across) work(Column{(long long)matrix[0] + inside, rows, across, false});
        }
        return;
    }
    for (int k = warp; k < segments.count; k += warps) {
        const long long begin = segments.start(k);
        const int rows = segments.start(k + 1) - begin;
        if (width == 1) work(Column{begin, rows, 1, true});
        else if (column < width) work(Column{begin * width + column, rows, width, false});
    }
}

extern "C" __global__ void sparsemax(
    const REAL* x, REAL* out, const int* offsets, int length, int segments, int width) {
    over_columns({offsets, length, segments, width}, [=](const Column& column) {
        REAL peak = -infinity(), threshold = -1, count = infinity();
        column.each([&](long long i) { peak = Max::combine(peak, x[i]); });
        peak = column.combined<Max>(peak);
        for (;;) {
            REAL sum = 0, above = 0;
            column.each([&](long long i) {
                const REAL below_peak = x[i] - peak;
                if (below_peak > threshold) {
                    sum += below_peak;
                    above += 1;
                }
            });
            sum = column.combined<Add>(sum);
            above = column.combined<Add>(above);
            if (!(above < count)) break;
            count = above;
            threshold = (sum - 1) / count;
        }
        column.each([&](long long i) {
            const REAL y = x[i] - peak - threshold;
            out[i] = y < 0 ? (REAL)0 : y;
        });
    });
}

extern "C" __global__ void sparsemax_backward(const REAL* dy, const REAL* y, REAL* out,
    const int* offsets, int length, int segments, int width) {
    over_columns({offsets, length, segments, width}, [=](const Column& column) {
        REAL sum = 0, count = 0;
        column.each([&](long long i) {
            sum += y[i] != 0 ? dy[i] : (REAL)0;
            count += y[i] != 0;
        });
        const REAL mean = column.combined<Add>(sum) / column.combined<Add>(count);
        column.each([&](long long i) { out[i] = y[i] != 0 ? dy[i] - mean : (REAL)0; });
    });
}
