// Softmax and log-softmax within segments, column by column: the CUDA version of
// kernels/softmax.py.
//
// x, y, dy, out are (N, width). An empty segment is nothing to do. Grids and blocks:
// `over_segments`.

// One pass for the maximum and Σ exp(x - maximum), one for the outputs.
// Source: Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct Forward : Normalized {
    const REAL* x;
    REAL* out;

    __device__ __forceinline__ void add(State& state, Element at) const {
        const REAL value = x[at.i];
        if (value > state.peak) {
            // 1 + (value - value) is 1, and NaN for +inf, as exp(inf - inf) is.
            state.sum = state.sum * exp(state.peak - value) + ((REAL)1 + (value - value));
            state.peak = value;
        } else if (value != -infinity()) {  // a NaN goes on into the sum
            state.sum += exp(value - state.peak);
        }
    }
    __device__ __forceinline__ void finish(State, int, int, int) const {}
};

struct Softmax : Forward {
    __device__ __forceinline__ void write(State state, long long i) const {
        out[i] = exp(x[i] - state.peak) / state.sum;
    }
};

struct LogSoftmax : Forward {
    __device__ __forceinline__ void write(State state, long long i) const {
        out[i] = x[i] - state.peak - log(state.sum);
    }
};

struct Backward {
    typedef REAL State;
    const REAL *dy, *y;
    REAL* out;

    static __device__ __forceinline__ REAL identity() { return (REAL)0; }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) { return a + b; }
    __device__ __forceinline__ void finish(REAL, int, int, int) const {}
};

struct SoftmaxBackward : Backward {
    __device__ __forceinline__ void add(REAL& state, Element at) const {
        state += dy[at.i] * y[at.i];
    }
    __device__ __forceinline__ void write(REAL state, long long i) const {
        out[i] = (dy[i] - state) * y[i];
    }
};

struct LogSoftmaxBackward : Backward {
    __device__ __forceinline__ void add(REAL& state, Element at) const { state += dy[at.i]; }
    __device__ __forceinline__ void write(REAL state, long long i) const {
        out[i] = dy[i] - exp(y[i]) * state;
    }
};

extern "C" __global__ void softmax(
    const REAL* x, REAL* out, const int* offsets, int length, int segments, int width) {
    run_segments(Softmax{{{}, x, out}}, {offsets, length, segments, width});
}

extern "C" __global__ void log_softmax(
    const REAL* x, REAL* out, const int* offsets, int length, int segments, int width) {
    run_segments(LogSoftmax{{{}, x, out}}, {offsets, length, segments, width});
}

extern "C" __global__ void softmax_backward(const REAL* dy, const REAL* y, REAL* out,
    const int* offsets, int length, int segments, int width) {
    run_segments(SoftmaxBackward{{dy, y, out}}, {offsets, length, segments, width});
}

extern "C" __global__ void log_softmax_backward(const REAL* dy, const REAL* y, REAL* out,
    const int* offsets, int length, int segments, int width) {
    run_segments(LogSoftmaxBackward{{dy, y, out}}, {offsets, length, segments, width});
}
