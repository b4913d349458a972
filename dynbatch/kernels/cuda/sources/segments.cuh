// What kernels over ragged segments share; stands behind common.cuh in front of every NAME.cu.

// Segments of packed rows, (N, width). Segment k is the rows offsets[k] to offsets[k + 1], or,
// where `offsets` is NULL, the rows k * length to (k + 1) * length.
//
// Where `width` is 0 the segments are matrices of different widths, and `offsets` has a row for
// each, and one more:
//
//     first element    first row    first element of the sums    width    first tile
//
// counted through all of them. A matrix has width / 32 tiles, rounded up. Formulas and bodies
// (below) find an element of the sums, k * width + column, at `column` alone.
struct Segments {
    const int* offsets;
    int length, count, width;

    __device__ __forceinline__ long long start(int k) const {
        if (!width) return matrix(k)[1];
        return offsets ? (long long)offsets[k] : (long long)k * length;
    }
    __device__ __forceinline__ const int* matrix(int k) const { return offsets + ENTRIES * k; }

    // The matrix, in [low, high), in which an entry of the table is reached.
    __device__ __forceinline__ int find(int entry, long long position, int low, int high) const {
        return find_segment(offsets + entry, ENTRIES, low, high, position);
    }

    static constexpr int ENTRIES = 5;
};

// Integers in the room of REALs: where in a segment or window something was found.
template <int SIZE> struct IntegerOf {
    typedef int type;
};
template <> struct IntegerOf<8> {
    typedef long long type;
};
typedef IntegerOf<sizeof(REAL)>::type Index;

// A maximum and Σ exp(x - maximum), of which parts are put together.
struct Normalizer {
    REAL peak, sum;

    // Takes in a value, so that one pass finds maximum and sum.
    // Source: Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3.
    __device__ __forceinline__ void take(REAL value) {
        if (value > peak) {
            // 1 + (value - value) is 1, and NaN for +inf, as exp(inf - inf) is.
            sum = sum * exp(peak - value) + ((REAL)1 + (value - value));
            peak = value;
        } else if (value != -infinity()) {  // a NaN goes on into the sum
            sum += exp(value - peak);
        }
    }

    static __device__ __forceinline__ Normalizer identity() { return {-infinity(), (REAL)0}; }
    static __device__ __forceinline__ Normalizer combine(Normalizer a, Normalizer b) {
        if (b.peak > a.peak) {
            const Normalizer swapped = a;
            a = b;
            b = swapped;
        }
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

// Likewise over a sum.
struct Summed : Add {
    typedef REAL State;
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
// A block has (32, 8) threads and count / gridDim.x of the segments. A long segment is shared by
// its 8 warps, a short one belongs to a warp, and one of a few elements in one column to a thread.
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
        if (rows <= TINY || rows > LONG) continue;  // the same for the whole warp
        const State state = together(reduce(begin, row, rows, STEP));
        if (COLUMNS ? inside : lane == 0) formula.finish(state, k, column, rows);
        write(state, begin, row, rows, STEP);
    }
    for (int k = first; k < last; ++k) {
        const long long begin = segments.start(k);
        const int rows = segments.start(k + 1) - begin;
        if (rows <= LONG) continue;  // the same for the whole block
        const int from = warp * STEP + row;
        const State mine = together(reduce(begin, from, rows, WARPS * STEP));
        if (COLUMNS || lane == 0) partial[warp][slot] = mine;
        __syncthreads();
        State state = partial[0][slot];
        for (int w = 1; w < WARPS; ++w) state = Formula::combine(state, partial[w][slot]);
        __syncthreads();  // the next long segment writes `partial` again
        if (warp == 0 && (COLUMNS ? inside : lane == 0)) formula.finish(state, k, column, rows);
        write(state, begin, from, rows, WARPS * STEP);
    }
}

// The same for matrices of different widths: a tile of 32 columns is as a segment above, with as
// many rows as its matrix. Grid (blocks), among which the tiles are shared.
template <class Formula>
__device__ __forceinline__ void over_matrices(const Formula formula, Segments segments) {
    typedef typename Formula::State State;
    constexpr int WARPS = 8, LONG = 64;
    __shared__ State partial[WARPS][WARP];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int tiles = segments.matrix(segments.count)[4];
    const int each = (tiles + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * each, last = min(first + each, tiles);

    // Calls body(k, its first element in this lane's column, rows, width, element of the sums).
    auto in_tile = [&](int tile, auto body) {
        const int k = segments.find(4, tile, 0, segments.count);
        const int* matrix = segments.matrix(k);
        const int column = (tile - matrix[4]) * WARP + lane;
        body(k, (long long)matrix[0] + column, (int)(segments.start(k + 1) - segments.start(k)),
            column < matrix[3], matrix[3], matrix[2] + column);
    };
    auto reduce = [&](long long begin, int width, int from, int rows, int step) {
        State state = Formula::identity();
        for (int n = from; n < rows; n += step)
            formula.add(state, {begin + (long long)n * width, n, n});
        return state;
    };
    auto write = [&](State state, long long begin, int width, int from, int rows, int step) {
        for (int n = from; n < rows; n += step) formula.write(state, begin + (long long)n * width);
    };

    for (int tile = first + warp; tile < last; tile += WARPS) {
        in_tile(tile, [&](int k, long long begin, int rows, bool inside, int width, int sum) {
            if (rows > LONG || !inside) return;
            const State state = reduce(begin, width, 0, rows, 1);
            formula.finish(state, k, sum, rows);
            write(state, begin, width, 0, rows, 1);
        });
    }
    for (int tile = first; tile < last; ++tile) {
        in_tile(tile, [&](int k, long long begin, int rows, bool inside, int width, int sum) {
            if (rows <= LONG) return;  // the same for the whole block
            const int end = inside ? rows : 0;
            partial[warp][lane] = reduce(begin, width, warp, end, WARPS);
            __syncthreads();
            State state = partial[0][lane];
            for (int w = 1; w < WARPS; ++w) state = Formula::combine(state, partial[w][lane]);
            __syncthreads();  // the next long tile writes `partial` again
            if (warp == 0 && inside) formula.finish(state, k, sum, rows);
            write(state, begin, width, warp, end, WARPS);
        });
    }
}

template <class Formula>
__device__ __forceinline__ void over_rows(const Formula formula, Segments segments) {
    if (segments.width == 1) over_segments<false>(formula, segments);
    else over_segments<true>(formula, segments);
}

template <class Formula>
__device__ __forceinline__ void run_segments(const Formula formula, Segments segments) {
    if (segments.width) over_rows(formula, segments);
    else over_matrices(formula, segments);
}

// Calls body(k, row, column, i) for every element i of (N, width), which lies in row `row`, counted
// from the first of all, of segment k. TILE elements to a block, whatever the segments: block 256,
// grid N * width / TILE. The block finds the segments of its first and last element, so that a
// thread searches among those few only.
constexpr int TILE = 1024;

template <class Body>
__device__ __forceinline__ void over_elements(Segments segments, long long total, Body body) {
    const long long begin = (long long)blockIdx.x * TILE, end = min(begin + TILE, total);
    if (!segments.width) {  // matrices: i is in row n of all their rows, `column` of all their sums
        const int low = segments.find(0, begin, 0, segments.count);
        const int high = segments.find(0, end - 1, low, segments.count) + 1;
        for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
            const int k = segments.find(0, i, low, high);
            const int* matrix = segments.matrix(k);
            const unsigned element = i - matrix[0], across = matrix[3];
            body(
                k, (long long)matrix[1] + element / across, matrix[2] + (int)(element % across), i);
        }
        return;
    }
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
__device__ __forceinline__ void sum_each(Each each, REAL* out, Segments segments) {
    over_segments<false>(SumOf<Each>{{}, each, out}, segments);
}
