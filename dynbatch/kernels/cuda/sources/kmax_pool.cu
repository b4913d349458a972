// The k largest rows of each segment, column by column, in their order: the CUDA version of
// kernels/kmax_pool.py. A thread has one column of one segment; grid and block are those of
// `row_grid` over (segments, width). x is read k + 1 times, its neighbours by neighbouring threads.

struct Column {
    int segment, column;
    bool is_inside;
    long long begin;
    int rows;
};

__device__ __forceinline__ Column column_of_thread(Segments segments) {
    const int k = blockIdx.x * blockDim.y + threadIdx.y;
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    if (k >= segments.count || column >= segments.width) return {k, column, false, 0, 0};
    const long long begin = segments.start(k);
    return {k, column, true, begin, (int)(segments.start(k + 1) - begin)};
}

// place[j] = the row of out[j] in its segment, if not NULL.
extern "C" __global__ void kmax_pool(const REAL* x, REAL* out, Index* place, const int* offsets,
    int length, int count, int width, int k) {
    const Column own = column_of_thread({offsets, length, count, width});
    if (!own.is_inside) return;
    auto size = [&](int n) {
        const REAL value = x[(own.begin + n) * width + own.column];
        return value != value ? infinity() : value;
    };
    // Row n is after (least, last): it is smaller, or as large and comes later.
    REAL least = infinity();
    int last = -1;
    auto is_after = [&](REAL value, int n) {
        return value < least || (value == least && n > last);
    };
    for (int j = 0; j < k; ++j) {
        REAL next = -infinity();
        int found = -1;
        for (int n = 0; n < own.rows; ++n) {
            const REAL value = size(n);
            if (is_after(value, n) && (found < 0 || value > next)) {
                next = value;
                found = n;
            }
        }
        least = next;
        last = found;
    }
    long long to = (long long)own.segment * k * width + own.column;
    for (int n = 0; n < own.rows; ++n) {
        if (is_after(size(n), n)) continue;
        out[to] = x[(own.begin + n) * width + own.column];
        if (place) place[to] = n;
        to += width;
    }
}

extern "C" __global__ void kmax_pool_backward(const REAL* dy, const Index* place, REAL* out,
    const int* offsets, int length, int count, int width, int k) {
    const Column own = column_of_thread({offsets, length, count, width});
    if (!own.is_inside) return;
    REAL* to = out + own.begin * width + own.column;
    for (int n = 0; n < own.rows; ++n) to[(long long)n * width] = 0;
    long long from = (long long)own.segment * k * width + own.column;
    for (int j = 0; j < k; ++j, from += width) to[(long long)place[from] * width] = dy[from];
}
