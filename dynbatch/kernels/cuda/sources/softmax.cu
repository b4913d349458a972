// Softmax and log-softmax within segments, column by column: the CUDA version of
// kernels/softmax.py.
//
// x, y, dy, out are (N, width). An empty segment is nothing to do. Grids and blocks:
// `over_segments`.

// One pass for the maximum and Σ exp(x - maximum), one for the outputs.
struct Forward : Normalized {
    const REAL* x;
    REAL* out;

    __device__ __forceinline__ void add(State& state, Element at) const { state.take(x[at.i]); }
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

struct Backward : Summed {
    const REAL *dy, *y;
    REAL* out;

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
    run_segments(SoftmaxBackward{{{}, dy, y, out}}, {offsets, length, segments, width});
}

extern "C" __global__ void log_softmax_backward(const REAL* dy, const REAL* y, REAL* out,
    const int* offsets, int length, int segments, int width) {
    run_segments(LogSoftmaxBackward{{{}, dy, y, out}}, {offsets, length, segments, width});
}
