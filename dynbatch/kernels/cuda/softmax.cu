// Softmax and log-softmax within segments, column by column: the twin of kernels/softmax.py.
//
// x, y, dy, out are (N, width). Segment k is the rows offsets[k] to offsets[k + 1], or, where offsets
// is NULL, the rows k * length to (k + 1) * length. An empty segment is nothing to do.
//
// Each formula reduces a segment to a small state in one pass and writes the outputs in a second.
// A block has (32, 8) threads and segments / blocks of the segments, at most 8. A warp does a short
// segment alone; the 8 warps share a long one. Two layouts:
//
//   width == 1   lanes go along the segment           grid (blocks)
//   width > 1    a lane has a column, and its rows    grid (blocks, width / 32)
//
// The order of every sum depends on the length of the segment only.

constexpr int WARPS = 8;

// Running maximum and Σ exp(x - maximum), in one pass.
// Source: Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct Normalizer {
    REAL peak, sum;
};

__device__ __forceinline__ Normalizer nothing(Normalizer*) { return {-infinity(), (REAL)0}; }

__device__ __forceinline__ Normalizer combine(Normalizer a, Normalizer b) {
    if (b.peak > a.peak) { const Normalizer swapped = a; a = b; b = swapped; }
    // Equal peaks may both be -inf, whose difference is NaN. A NaN sum stays NaN.
    a.sum += a.peak == b.peak ? b.sum : b.sum * exp(b.peak - a.peak);
    return a;
}

__device__ __forceinline__ Normalizer from_lane(Normalizer a, int distance) {
    return {__shfl_xor_sync(ALL_LANES, a.peak, distance),
            __shfl_xor_sync(ALL_LANES, a.sum, distance)};
}

__device__ __forceinline__ REAL nothing(REAL*) { return (REAL)0; }
__device__ __forceinline__ REAL combine(REAL a, REAL b) { return a + b; }
__device__ __forceinline__ REAL from_lane(REAL a, int distance) {
    return __shfl_xor_sync(ALL_LANES, a, distance);
}

// The formulas. `add` takes element i into the state, `write` makes output i from the state.

struct Forward {
    typedef Normalizer State;
    const REAL* x;
    REAL* out;

    __device__ __forceinline__ void add(Normalizer& state, long long i) const {
        const REAL value = x[i];
        if (value > state.peak) {
            // 1 + (value - value) is 1, and NaN for +inf, as exp(inf - inf) is.
            state.sum = state.sum * exp(state.peak - value) + ((REAL)1 + (value - value));
            state.peak = value;
        } else if (value != -infinity()) {  // a NaN goes on into the sum
            state.sum += exp(value - state.peak);
        }
    }
};

struct Softmax : Forward {
    __device__ __forceinline__ void write(Normalizer state, long long i) const {
        out[i] = exp(x[i] - state.peak) / state.sum;
    }
};

struct LogSoftmax : Forward {
    __device__ __forceinline__ void write(Normalizer state, long long i) const {
        out[i] = x[i] - state.peak - log(state.sum);
    }
};

struct SoftmaxBackward {
    typedef REAL State;
    const REAL *dy, *y;
    REAL* out;

    __device__ __forceinline__ void add(REAL& state, long long i) const { state += dy[i] * y[i]; }
    __device__ __forceinline__ void write(REAL state, long long i) const {
        out[i] = (dy[i] - state) * y[i];
    }
};

struct LogSoftmaxBackward {
    typedef REAL State;
    const REAL *dy, *y;
    REAL* out;

    __device__ __forceinline__ void add(REAL& state, long long i) const { state += dy[i]; }
    __device__ __forceinline__ void write(REAL state, long long i) const {
        out[i] = dy[i] - exp(y[i]) * state;
    }
};

template <bool COLUMNS, class Formula>
__device__ __forceinline__ void over_segments(Formula formula, const int* offsets, int length,
                                              int segments, int width) {
    typedef typename Formula::State State;
    constexpr int LONG = COLUMNS ? 64 : 1024;
    constexpr int STEP = COLUMNS ? 1 : WARP;      // rows that a warp reads at once
    __shared__ State partial[WARPS][COLUMNS ? WARP : 1];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int slot = COLUMNS ? lane : 0, row = COLUMNS ? 0 : lane;
    const int column = COLUMNS ? blockIdx.y * WARP + lane : 0;
    const bool inside = column < width;
    const int each = (segments + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * each, last = min(first + each, segments);

    auto start = [&](int k) { return offsets ? (long long)offsets[k] : (long long)k * length; };
    auto reduce = [&](long long begin, long long end, int step) {
        State state = nothing((State*)nullptr);
        for (long long n = begin + row; inside && n < end; n += step)
            formula.add(state, n * width + column);
        if (!COLUMNS) {
#pragma unroll
            for (int distance = WARP / 2; distance > 0; distance /= 2)
                state = combine(state, from_lane(state, distance));
        }
        return state;
    };
    auto write = [&](State state, long long begin, long long end, int step) {
        for (long long n = begin + row; inside && n < end; n += step)
            formula.write(state, n * width + column);
    };

    const int own = first + warp;
    if (own < last && start(own + 1) - start(own) <= LONG) {
        const long long begin = start(own), end = start(own + 1);
        write(reduce(begin, end, STEP), begin, end, STEP);
    }
    for (int k = first; k < last; ++k) {
        const long long begin = start(k), end = start(k + 1);
        if (end - begin <= LONG) continue;        // the same for the whole block
        const State mine = reduce(begin + warp * STEP, end, WARPS * STEP);
        if (COLUMNS || lane == 0) partial[warp][slot] = mine;
        __syncthreads();
        State state = partial[0][slot];
        for (int w = 1; w < WARPS; ++w) state = combine(state, partial[w][slot]);
        __syncthreads();                          // the next long segment writes `partial` again
        write(state, begin + warp * STEP, end, WARPS * STEP);
    }
}

template <class Formula>
__device__ __forceinline__ void run(Formula formula, const int* offsets, int length, int segments,
                                    int width) {
    if (width == 1) over_segments<false>(formula, offsets, length, segments, width);
    else over_segments<true>(formula, offsets, length, segments, width);
}

extern "C" __global__ void softmax(const REAL* x, REAL* out, const int* offsets, int length,
                                   int segments, int width) {
    run(Softmax{{x, out}}, offsets, length, segments, width);
}

extern "C" __global__ void log_softmax(const REAL* x, REAL* out, const int* offsets, int length,
                                       int segments, int width) {
    run(LogSoftmax{{x, out}}, offsets, length, segments, width);
}

extern "C" __global__ void softmax_backward(const REAL* dy, const REAL* y, REAL* out,
                                            const int* offsets, int length, int segments,
                                            int width) {
    run(SoftmaxBackward{dy, y, out}, offsets, length, segments, width);
}

extern "C" __global__ void log_softmax_backward(const REAL* dy, const REAL* y, REAL* out,
                                                const int* offsets, int length, int segments,
                                                int width) {
    run(LogSoftmaxBackward{dy, y, out}, offsets, length, segments, width);
}
