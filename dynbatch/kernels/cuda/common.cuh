// What every kernel file starts with. The loader joins this text in front of each NAME.cu and
// defines REAL, the element type, as float or double. No #include: NVRTC has no system headers.

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ REAL infinity() { return (REAL)__int_as_float(0x7f800000); }

// Functions of one element, as kernels/elementwise.py defines them; a NaN stays one.

__device__ __forceinline__ REAL sigmoid(REAL x) {
    return tanh(x * (REAL)0.5) * (REAL)0.5 + (REAL)0.5;
}

__device__ __forceinline__ REAL relu(REAL x) { return x < 0 ? (REAL)0 : x; }

__device__ __forceinline__ REAL sign(REAL x) { return x > 0 ? (REAL)1 : x < 0 ? (REAL)-1 : x; }

__device__ __forceinline__ REAL clip(REAL x, REAL low, REAL high) {
    const REAL raised = x < low ? low : x;
    return raised > high ? high : raised;
}

__device__ __forceinline__ REAL softplus(REAL x) { return relu(x) + log1p(exp(-fabs(x))); }

__device__ __forceinline__ REAL silu_slope(REAL x) {
    const REAL gate = sigmoid(x);
    return gate * (1 + x * (1 - gate));
}

__device__ __forceinline__ REAL normal_distribution(REAL x) {
    return (REAL)0.5 * (1 + erf(x * (REAL)0.70710678118654752));
}

__device__ __forceinline__ REAL gelu(REAL x) { return x * normal_distribution(x); }

__device__ __forceinline__ REAL gelu_slope(REAL x) {
    const REAL density = exp((REAL)-0.5 * x * x) * (REAL)0.39894228040143268;  // 1 / sqrt(2 pi)
    return normal_distribution(x) + x * density;
}

constexpr REAL GELU_SCALE = (REAL)0.79788456080286536;  // sqrt(2 / pi)
constexpr REAL GELU_CUBIC = (REAL)0.044715;

__device__ __forceinline__ REAL gelu_tanh(REAL x) {
    return x * ((REAL)0.5 * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x))));
}

__device__ __forceinline__ REAL gelu_tanh_slope(REAL x) {
    const REAL t = tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x));
    const REAL inner = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
    return (REAL)0.5 * (1 + t) + (REAL)0.5 * x * (1 - t * t) * inner;
}

// Index helpers. Element offsets are long long: an arena may hold more than 2^31 elements.

__device__ __forceinline__ long long thread_in_grid() {
    return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ long long threads_in_grid() {
    return (long long)gridDim.x * blockDim.x;
}

// The k in [low, high) with starts[k * step] <= position < starts[(k + 1) * step]. `starts` does not
// decrease and begins at or before `position`; of equal starts the last is meant, so that empty
// entries are passed over.
template <class Integer>
__device__ __forceinline__ int find_segment(const Integer* starts, int step, int low, int high,
                                            long long position) {
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (starts[(long long)middle * step] <= position) low = middle;
        else high = middle;
    }
    return low;
}

// Reductions. An operation is a type with `identity()` and `combine(a, b)`. The order in which
// values are combined depends on the number of threads only, so two runs give the same bits.

struct Add {
    static __device__ __forceinline__ REAL identity() { return (REAL)0; }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) { return a + b; }
};

// Like np.maximum: a NaN wins.
struct Max {
    static __device__ __forceinline__ REAL identity() { return -infinity(); }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) {
        return a > b || a != a ? a : b;
    }
};

// Like np.minimum: a NaN wins.
struct Min {
    static __device__ __forceinline__ REAL identity() { return infinity(); }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) {
        return a < b || a != a ? a : b;
    }
};

// All 32 lanes of the warp must call; all get the result.
template <class Operation>
__device__ __forceinline__ REAL warp_reduce(REAL value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = Operation::combine(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

// All threads of a one-dimensional block of whole warps must call; all get the result.
// `partial` is shared memory for one value a warp, and may be used again at once.
template <class Operation>
__device__ __forceinline__ REAL block_reduce(REAL value, REAL* partial) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    value = warp_reduce<Operation>(value);
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = warp_reduce<Operation>(lane < warps ? partial[lane] : Operation::identity());
    __syncthreads();  // all have read before a caller writes `partial` again
    return value;
}

// Segments of packed rows, (N, width). Segment k is the rows offsets[k] to offsets[k + 1], or, where
// `offsets` is NULL, the rows k * length to (k + 1) * length.
struct Segments {
    const int* offsets;
    int length, count, width;

    __device__ __forceinline__ long long start(int k) const {
        return offsets ? (long long)offsets[k] : (long long)k * length;
    }
};

// The integer that has room in an array of REAL.
template <int SIZE> struct IntegerOf { typedef int type; };
template <> struct IntegerOf<8> { typedef long long type; };
typedef IntegerOf<sizeof(REAL)>::type Integer;

__device__ __forceinline__ REAL from_lane(REAL a, int distance) {
    return __shfl_xor_sync(ALL_LANES, a, distance);
}

// Formulas within segments, column by column. Each reduces a segment to a small state in one pass;
// in a second it may write an output for every element. A formula has
//
//     State, with from_lane(state, distance)    the state of the lane `distance` away
//     identity(), combine(a, b)                 of nothing, and of two parts
//     add(state, i, n)                          takes in element i, in row n of the segment
//     finish(state, k, column, rows)            when the segment k is reduced
//     write(state, i)                           output i
//
// A block has (32, 8) threads and count / gridDim.x of the segments. A long segment is shared by its
// 8 warps, a short one belongs to a warp, and one of a few elements in one column to a thread.
//
//     COLUMNS false   width 1, lanes go along the segment    grid (blocks)
//     COLUMNS true    a lane has a column, and its rows      grid (blocks, width / 32)
//
// The order in which a segment is reduced depends on its length only.
template <bool COLUMNS, class Formula>
__device__ __forceinline__ void over_segments(const Formula formula, Segments segments) {
    typedef typename Formula::State State;
    constexpr int WARPS = 8, STEP = COLUMNS ? 1 : WARP;  // STEP: rows that a warp reads at once
    constexpr int TINY = COLUMNS ? -1 : 16, LONG = COLUMNS ? 64 : 1024;
    __shared__ State partial[WARPS][COLUMNS ? WARP : 1];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int slot = COLUMNS ? lane : 0, row = COLUMNS ? 0 : lane;
    const int column = COLUMNS ? blockIdx.y * WARP + lane : 0, width = COLUMNS ? segments.width : 1;
    const bool inside = column < width;
    const int each = (segments.count + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * each, last = min(first + each, segments.count);

    auto reduce = [&](long long begin, int from, int rows, int step) {
        State state = Formula::identity();
        for (int n = from; inside && n < rows; n += step)
            formula.add(state, (begin + n) * width + column, n);
        return state;
    };
    auto together = [&](State state) {
        if (!COLUMNS) {
#pragma unroll
            for (int distance = WARP / 2; distance > 0; distance /= 2)
                state = Formula::combine(state, from_lane(state, distance));
        }
        return state;
    };
    auto write = [&](State state, long long begin, int from, int rows, int step) {
        for (int n = from; inside && n < rows; n += step)
            formula.write(state, (begin + n) * width + column);
    };

    if (!COLUMNS) {
        for (int k = first + warp * WARP + lane; k < last; k += WARPS * WARP) {
            const long long begin = segments.start(k);
            const int rows = segments.start(k + 1) - begin;
            if (rows > TINY) continue;
            const State state = reduce(begin, 0, rows, 1);
            formula.finish(state, k, column, rows);
            write(state, begin, 0, rows, 1);
        }
    }
    for (int k = first + warp; k < last; k += WARPS) {
        const long long begin = segments.start(k);
        const int rows = segments.start(k + 1) - begin;
        if (rows <= TINY || rows > LONG) continue;     // the same for the whole warp
        const State state = together(reduce(begin, row, rows, STEP));
        if (COLUMNS ? inside : lane == 0) formula.finish(state, k, column, rows);
        write(state, begin, row, rows, STEP);
    }
    for (int k = first; k < last; ++k) {
        const long long begin = segments.start(k);
        const int rows = segments.start(k + 1) - begin;
        if (rows <= LONG) continue;                    // the same for the whole block
        const int from = warp * STEP + row;
        const State mine = together(reduce(begin, from, rows, WARPS * STEP));
        if (COLUMNS || lane == 0) partial[warp][slot] = mine;
        __syncthreads();
        State state = partial[0][slot];
        for (int w = 1; w < WARPS; ++w) state = Formula::combine(state, partial[w][slot]);
        __syncthreads();                               // the next long segment writes `partial` again
        if (warp == 0 && (COLUMNS ? inside : lane == 0)) formula.finish(state, k, column, rows);
        write(state, begin, from, rows, WARPS * STEP);
    }
}

template <class Formula>
__device__ __forceinline__ void run_segments(const Formula formula, Segments segments) {
    if (segments.width == 1) over_segments<false>(formula, segments);
    else over_segments<true>(formula, segments);
}

// Calls body(k, row, column, i) for every element i of (N, width), which lies in row `row`, counted
// from the first of all, of segment k. TILE elements to a block, whatever the segments: block 256,
// grid N * width / TILE. The block finds the segments of its first and last element, so that a
// thread searches among those few only.
constexpr int TILE = 1024;

template <class Body>
__device__ __forceinline__ void over_elements(Segments segments, long long total, Body body) {
    const long long begin = (long long)blockIdx.x * TILE, end = min(begin + TILE, total);
    const unsigned width = segments.width;
    const long long row = begin / width, last = (end - 1) / width;
    const int* offsets = segments.offsets;
    int low, high = 0;
    if (offsets) {
        low = find_segment(offsets, 1, 0, segments.count, row);
        high = find_segment(offsets, 1, low, segments.count, last) + 1;
    } else {
        low = row / segments.length;
    }
    const long long start = segments.start(low);
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const unsigned element = i - row * width;
        const long long n = row + element / width;
        const int k = offsets ? find_segment(offsets, 1, low, high, n)
                              : low + (unsigned)(n - start) / (unsigned)segments.length;
        body(k, n, element % width, i);
    }
}
