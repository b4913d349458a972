// Variances and standard deviations of segments: the CUDA version of kernels/variance.py. x and out
// are (N, width), all else (K, width), or matrices. Grid and block as for `over_elements`.

// out[n] = (x[n] - mean[k])^2.
extern "C" __global__ void squared_deviations(const REAL* x, const REAL* mean, REAL* out,
    const int* offsets, int length, int count, int width, long long total) {
    over_elements(
        {offsets, length, count, width}, total, [&](int k, long long, int column, long long i) {
            const REAL deviation = x[i] - mean[(long long)k * width + column];
            out[i] = deviation * deviation;
        });
}

// out[n] = dy[k] 2 d / m, or, of a root y, dy[k] d / (m y) and 0 where y is 0; d = x[n] - mean[k]
// and m = rows - correction, 0 where that is negative.
extern "C" __global__ void spread_backward(const REAL* dy, const REAL* x, const REAL* mean,
    const REAL* y, REAL* out, const int* offsets, int length, int count, int width, long long total,
    REAL correction, bool root) {
    const Segments segments = {offsets, length, count, width};
    over_elements(segments, total, [&](int k, long long, int column, long long i) {
        const long long at = (long long)k * width + column;
        const REAL rows = (REAL)(segments.start(k + 1) - segments.start(k)) - correction;
        const REAL each = (root ? (REAL)1 : (REAL)2) / (rows > 0 ? rows : (REAL)0);
        REAL factor = dy[at] * each;
        if (root) factor = y[at] == 0 ? (REAL)0 : factor / y[at];
        out[i] = (x[i] - mean[at]) * factor;
    });
}
