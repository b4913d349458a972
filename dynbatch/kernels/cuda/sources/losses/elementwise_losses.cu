// The pick of log-probabilities; the losses of two values are printed. Grids and blocks:
// `over_segments` for sums, `over_elements` for the rest.

// out[k] = -sum of weights[n] x[n, ids[n]] over the rows n of segment k, of x (N, classes); width
// is 1. A weight of 0 takes a row out, even where x is infinite.
extern "C" __global__ void pick_loss(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, const int* ids, const REAL* weights, int classes) {
    sum_each(
        [=](long long n) {
            return weights[n] == 0 ? (REAL)0 : -weights[n] * x[n * classes + ids[n]];
        },
        out, {offsets, length, count, width});
}

// out[n, ids[n]] = -weights[n] dy[k] for every row n of segment k, and 0 elsewhere.
extern "C" __global__ void pick_loss_backward(const REAL* dy, REAL* out, const int* offsets,
    int length, int count, int width, long long total, const int* ids, const REAL* weights) {
    over_elements(
        {offsets, length, count, width}, total, [=](int k, long long n, int d, long long i) {
            out[i] = d == ids[n] ? -weights[n] * dy[k] : (REAL)0;
        });
}
