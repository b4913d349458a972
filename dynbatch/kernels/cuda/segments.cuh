// What kernels over ragged segments share; stands behind common.cuh in front of every NAME.cu.

// Segments of packed rows, (N, width). Segment k is the rows offsets[k] to offsets[k + 1], or, where
// `offsets` is NULL, the rows k * length to (k + 1) * length.
struct Segments {
    const int* offsets;
    int length, count, width;

    __device__ __forceinline__ long long start(int k) const {
        return offsets ? (long long)offsets[k] : (long long)k * length;
    }
};

// Integers in the room of REALs: where in a segment or window something was found.
template <int SIZE> struct IntegerOf { typedef int type; };
template <> struct IntegerOf<8> { typedef long long type; };
typedef IntegerOf<sizeof(REAL)>::type Place;

// A maximum and Σ exp(x - maximum), of which parts are put together.
struct Normalizer {
    REAL peak, sum;

    static __device__ __forceinline__ Normalizer identity() { return {-infinity(), (REAL)0}; }
    static __device__ __forceinline__ Normalizer combine(Normalizer a, Normalizer b) {
        if (b.peak > a.peak) { const Normalizer swapped = a; a = b; b = swapped; }
        // Equal peaks may both be infinite, whose difference is NaN. A NaN sum stays NaN.
        a.sum += a.peak == b.peak ? b.sum : b.sum * exp(b.peak - a.peak);
        return a;
    }
};

// What formulas (below) over such a state have in common.
struct Normalized {
    typedef Normalizer State;

    static __device__ __forceinline__ State identity() { return State::identity(); }
    static __device__ __forceinline__ State combine(State a, State b) {
        return State::combine(a, b);
    }
};

__device__ __forceinline__ REAL from_lane(REAL a, int distance) {
    return __shfl_xor_sync(ALL_LANES, a, distance);
}

__device__ __forceinline__ Normalizer from_lane(Normalizer a, int distance) {
    return {from_lane(a.peak, distance), from_lane(a.sum, distance)};
}

// Element i of a matrix, in its row `row`, which is row n of a segment.
struct Element {
    long long i, row;
    int n;
};

// Formulas within segments, column by column. Each reduces a segment to a small state in one pass;
// in a second it may write an output for every element. A formula has
//
//     State, with from_lane(state, distance)    the state of the lane `distance` away
//     identity(), combine(a, b)                 of nothing, and of two parts
//     add(state, element)                       takes in an Element
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
            formula.add(state, {(begin + n) * width + column, begin + n, n});
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
