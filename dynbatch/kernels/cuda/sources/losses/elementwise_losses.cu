// Losses that compare two values element by element, and the pick of log-probabilities: the CUDA
// version of kernels/losses/elementwise.py. Grids and blocks: `over_segments` for sums,
// `over_elements` for the rest.

// The formulas of an input x and a target t, by the number that losses.py gives them.
enum { SQUARED_ERROR, DIVERGENCE, LOG_DIVERGENCE, LOGISTIC };

__device__ __forceinline__ REAL log_or_zero(REAL t) { return t == 0 ? (REAL)0 : log(t); }

__device__ __forceinline__ REAL loss(int pair, REAL x, REAL t) {
    switch (pair) {
        case SQUARED_ERROR: return (x - t) * (x - t);
        case DIVERGENCE: return t == 0 ? (REAL)0 : (log(t) - x) * t;  // 0 also where x = -inf
        case LOG_DIVERGENCE: return (t - x) * exp(t);
        default: return fabs(x) * (x > 0 ? 1 - t : t) + log1p(exp(-fabs(x)));
    }
}

__device__ __forceinline__ REAL by_input(int pair, REAL x, REAL t) {
    switch (pair) {
        case SQUARED_ERROR: return (x - t) * 2;
        case DIVERGENCE: return -t;
        case LOG_DIVERGENCE: return -exp(t);
        default: return x > 0 ? 1 - t - sigmoid(-x) : sigmoid(x) - t;
    }
}

__device__ __forceinline__ REAL by_target(int pair, REAL x, REAL t) {
    switch (pair) {
        case SQUARED_ERROR: return (t - x) * 2;
        case DIVERGENCE: return log_or_zero(t) - x + 1;
        case LOG_DIVERGENCE: return (t - x + 1) * exp(t);
        default: return -x;
    }
}

// A sum of one number for each row, which `Each` gives.
template <class Each>
struct SumOf : Summed {
    Each each;
    REAL* out;

    __device__ __forceinline__ void add(REAL& state, Element at) const { state += each(at.i); }
    __device__ __forceinline__ void finish(REAL state, int k, int, int) const { out[k] = state; }
    __device__ __forceinline__ void write(REAL, long long) const {}
};

template <class Each>
__device__ __forceinline__ void sum_segments(Each each, REAL* out, Segments segments) {
    over_segments<false>(SumOf<Each>{{}, each, out}, segments);
}

// out[k] = the sum of f(x_i, t_i) over the elements i of segment k; width is 1.
extern "C" __global__ void pair_loss(const REAL* x, const REAL* t, REAL* out, const int* offsets,
    int length, int count, int width, int pair) {
    sum_segments(
        [=](long long i) { return loss(pair, x[i], t[i]); }, out, {offsets, length, count, width});
}

// out_i = dy[k] f'(x_i, t_i), the derivative by t if `of_target`, else by x; width is 1.
extern "C" __global__ void pair_loss_backward(const REAL* dy, const REAL* x, const REAL* t,
    REAL* out, const int* offsets, int length, int count, int width, long long total, int pair,
    bool of_target) {
    over_elements({offsets, length, count, width}, total, [=](int k, long long, int, long long i) {
        const REAL slope = of_target ? by_target(pair, x[i], t[i]) : by_input(pair, x[i], t[i]);
        out[i] = slope * dy[k];
    });
}

// out[k] = -sum of weights[n] x[n, ids[n]] over the rows n of segment k, of x (N, classes); width
// is 1. A weight of 0 takes a row out, even where x is infinite.
extern "C" __global__ void pick_loss(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, const int* ids, const REAL* weights, int classes) {
    sum_segments(
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
