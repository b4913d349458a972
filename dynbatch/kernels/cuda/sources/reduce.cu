// Reductions of segments that are more than one sum, and their gradients: the CUDA version of
// kernels/reduce.py. x, out of gradients are (N, width); values of segments (K, width).
//
// Reductions have grid and block of `over_segments`, gradients of `over_elements`.

struct Mean : Summed {
    const REAL* x;
    REAL* out;
    const int* rows;
    int width;

    __device__ __forceinline__ void add(REAL& state, Element at) const { state += x[at.i]; }
    __device__ __forceinline__ void finish(REAL state, int k, int column, int added) const {
        out[(long long)k * width + column] = state / (REAL)max(1, rows ? rows[k] : added);
    }
    __device__ __forceinline__ void write(REAL, long long) const {}
};

// out[k] = the sum of segment k over rows[k], or over its own rows where `rows` is NULL; 0 of none.
extern "C" __global__ void mean_segments(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, const int* rows) {
    run_segments(Mean{{}, x, out, rows, width}, {offsets, length, count, width});
}

// out[n] = dy[k] / rows of segment k.
extern "C" __global__ void mean_segments_backward(const REAL* dy, REAL* out, const int* offsets,
    int length, int count, int width, long long total) {
    const Segments segments = {offsets, length, count, width};
    over_elements(segments, total, [&](int k, long long, int column, long long i) {
        const REAL rows = segments.start(k + 1) - segments.start(k);
        out[i] = dy[(long long)k * width + column] / rows;
    });
}

struct LogSumExp : Normalized {
    const REAL* x;
    REAL* out;
    int width;

    __device__ __forceinline__ void add(State& state, Element at) const {
        const REAL value = x[at.i];
        if (value > state.peak) {
            state.sum = state.sum * exp(state.peak - value) + (REAL)1;
            state.peak = value;
        } else {  // an equal one may be infinite; a NaN goes on into the sum
            state.sum += value == state.peak ? (REAL)1 : exp(value - state.peak);
        }
    }
    __device__ __forceinline__ void finish(State state, int k, int column, int) const {
        out[(long long)k * width + column] = log(state.sum) + state.peak;
    }
    __device__ __forceinline__ void write(State, long long) const {}
};

// out[k] = log Σ exp(x[n]) over segment k; -inf of no rows.
extern "C" __global__ void logsumexp_segments(
    const REAL* x, REAL* out, const int* offsets, int length, int count, int width) {
    run_segments(LogSumExp{{}, x, out, width}, {offsets, length, count, width});
}

// out[n] = dy[k] * exp(x[n] - y[k]); a y of -inf counts as 0.
extern "C" __global__ void logsumexp_segments_backward(const REAL* dy, const REAL* x, const REAL* y,
    REAL* out, const int* offsets, int length, int count, int width, long long total) {
    over_elements(
        {offsets, length, count, width}, total, [&](int k, long long, int column, long long i) {
            const long long at = (long long)k * width + column;
            const REAL peak = y[at] == -infinity() ? (REAL)0 : y[at];
            out[i] = exp(x[i] - peak) * dy[at];
        });
}

// The largest value and the first row that has it. A NaN is larger than any other.
struct Largest {
    REAL value;
    int row;
};

__device__ __forceinline__ Largest from_lane(Largest a, int distance) {
    return {from_lane(a.value, distance), __shfl_xor_sync(ALL_LANES, a.row, distance)};
}

// The smallest value is the largest negative.
struct FirstExtremum {
    typedef Largest State;
    const REAL* x;
    Index* out;
    int width;
    bool largest;

    static __device__ __forceinline__ State identity() { return {-infinity(), 0x7fffffff}; }
    static __device__ __forceinline__ State combine(State a, State b) {
        const bool is_nan = b.value != b.value, was_nan = a.value != a.value;
        const bool same = b.value == a.value || (is_nan && was_nan);
        if (same) return b.row < a.row ? b : a;
        return !was_nan && (is_nan || b.value > a.value) ? b : a;
    }
    __device__ __forceinline__ void add(State& state, Element at) const {
        state = combine(state, {largest ? x[at.i] : -x[at.i], at.n});
    }
    __device__ __forceinline__ void finish(State state, int k, int column, int) const {
        out[(long long)k * width + column] = state.row;
    }
    __device__ __forceinline__ void write(State, long long) const {}
};

// out[k] = how many rows into segment k its largest, or smallest, value occurs first.
extern "C" __global__ void first_extremum(
    const REAL* x, Index* out, const int* offsets, int length, int count, int width, bool largest) {
    run_segments(FirstExtremum{x, out, width, largest}, {offsets, length, count, width});
}

// out[n] = dy[k] at the row that `first` names in segment k, else 0.
extern "C" __global__ void extremum_backward(const REAL* dy, const Index* first, REAL* out,
    const int* offsets, int length, int count, int width, long long total) {
    const Segments segments = {offsets, length, count, width};
    over_elements(segments, total, [&](int k, long long n, int column, long long i) {
        const long long at = (long long)k * width + column;
        out[i] = n - segments.start(k) == first[at] ? dy[at] : (REAL)0;
    });
}
