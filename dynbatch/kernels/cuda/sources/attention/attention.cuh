// What the kernels of attention share.

// Which keys of its sentence a query sees, as `Mask` of kernels/attention/mask.py. `masks` has
// for each sentence
//
//     left  right  its first element of `visible` (-1: it has none)  elements from query to query
//
// and is NULL where every query sees every key.
struct Mask {
    int left, right, stride;
    const bool* visible;

    __device__ __forceinline__ bool sees(int query, int key) const {
        return key >= query - left && key <= query + right &&
               (!visible || visible[(long long)query * stride + key]);
    }
};

__device__ __forceinline__ Mask mask_of(const long long* masks, const bool* visible, int sentence) {
    constexpr int UNBOUNDED = 1 << 30;
    if (!masks) return {UNBOUNDED, UNBOUNDED, 0, nullptr};
    const long long* entry = masks + 4LL * sentence;
    const bool* own = entry[2] < 0 ? nullptr : visible + entry[2];
    return {(int)entry[0], (int)entry[1], (int)entry[3], own};
}

// Rows of a matrix, worked on by a block of whole warps. The order of a sum depends on the numbers
// of rows and columns only.

// How often loops that load are unrolled: as often as 64 registers allow.
constexpr int AT_ONCE = 16 / sizeof(REAL);

// Row n begins `stride` elements after row n - 1 and is `width` wide: a matrix, or one head of it.
template <class T>
struct Rows {
    T* first;
    int stride, width;

    __device__ __forceinline__ T* row(int n) const { return first + (long long)n * stride; }
    __device__ __forceinline__ Rows from(int n) const { return {row(n), stride, width}; }
};

// body(n, rows(n) · x) for n < count, each in one thread. A warp reads x once for four rows, which
// are `Rows`, or lie elsewhere by `row(n)`.
template <class Source, class Body>
__device__ __forceinline__ void dots_of_rows(Source rows, int count, const REAL* x, Body body) {
    constexpr int GROUP = 4;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    for (int n = warp * GROUP; n < count; n += warps * GROUP) {
        REAL sum[GROUP] = {};
#pragma unroll(AT_ONCE / 2)
        for (int c = lane; c < rows.width; c += WARP) {
            const REAL factor = x[c];
#pragma unroll
            for (int r = 0; r < GROUP; ++r) sum[r] += factor * rows.row(min(n + r, count - 1))[c];
        }
#pragma unroll
        for (int r = 0; r < GROUP; ++r) {
            sum[r] = warp_reduce<Add>(sum[r]);
            if (lane == r && n + r < count) body(n + r, sum[r]);
        }
    }
}

// body(c, Σ_n term(n, c)) for n < count and c < width, each column in one thread; `term` is asked
// once for each n and c. T is what is summed. A narrow matrix has its rows divided among warps:
//
//     width 70   warp 0, 1, 2   columns 0-31, 32-63, 64-69 of rows 0, 5, 10, …
//                warp 3, 4, 5   the same columns of rows 1, 6, 11, …             and so on
//
// All threads must call, and meet at a barrier before they call again.
template <class T, class Term, class Body>
__device__ __forceinline__ void sums_of_columns(int count, int width, Term term, Body body) {
    constexpr int UNITS = 16;
    __shared__ T partial[UNITS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int across = max(1, (width + WARP - 1) / WARP), groups = max(1, UNITS / across);
    for (int unit = warp; unit < groups * across; unit += warps) {
        const int column = unit % across * WARP + lane;
        T sum = T();
        if (column < width) {
#pragma unroll AT_ONCE
            for (int n = unit / across; n < count; n += groups) sum += term(n, column);
            if (groups == 1) body(column, sum);
        }
        if (groups > 1) partial[unit][lane] = sum;
    }
    if (groups == 1) return;  // the same for the whole block
    __syncthreads();
    for (int column = threadIdx.x; column < width; column += blockDim.x) {
        T sum = T();
        for (int g = 0; g < groups; ++g) sum += partial[g * across + column / WARP][column % WARP];
        body(column, sum);
    }
}
