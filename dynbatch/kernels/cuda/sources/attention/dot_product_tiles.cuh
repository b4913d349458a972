// Tiles of scores, which a block of eight warps makes in float32 or float64: 32 rows of its own side,
// and 64 of the other, or 32 in float64:
//
//                lane 0: keys 0, 32 … lane 31: keys 31, 63
//     warp 0   queries 0 … 3               Scores are summed from shared memory, by columns. A warp
//       …        …                         has whole rows of them, so softmax needs shuffles only.
//     warp 7   queries 28 … 31             What is summed over tiles stays in registers, but for
//                                          columns from KEPT * 32 on, which lie in the output.
//
// Block 256, or 512 where all sentences have one query.

constexpr int SIDE = 32, COLUMNS = 32, ROWS = 4, WARPS = SIDE / ROWS;  // of a tile
constexpr int OWN = 8 / sizeof(REAL), OTHERS = OWN * WARP;  // of the other side: a lane's, all
constexpr int CHUNK = WARPS * WARP;  // keys of a lone query whose scores are kept at a time

// Columns of a lane that stay in registers: as many as there is room for, by the compiler of Pascal's
// cards one less.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
constexpr int KEPT = sizeof(REAL) == 4 ? 1 : 0;
#else
constexpr int KEPT = sizeof(REAL) == 4 ? 2 : 0;
#endif

// Numbers of the four rows of a warp.
struct __align__(16) Four {
    REAL of[ROWS];
};

// Sums of columns lane + 32 k of these rows.
struct Kept {
    Four of[KEPT > 0 ? KEPT : 1];
};

// sums[WARP * k].of[r] = a(4 * warp + r) · b(lane + 32 k), 0 beyond the counts. `sums` is shared
// memory of this lane. All threads must call.
template <class Source>
__device__ __forceinline__ void products(Four* sums, Input a, int a_count, Source b, int b_count) {
    __shared__ Four a_tile[COLUMNS][WARPS + 1];
    __shared__ REAL b_tile[OTHERS][COLUMNS + 1];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Four sum[OWN] = {};
    int start = 0;
    do {  // once for no columns too: callers count on a barrier
        const int columns = min(COLUMNS, a.width - start);
#pragma unroll 1
        for (int r = 0; r < ROWS && lane < columns; ++r) {
            const int own = warp * ROWS + r;
            // Loads come before stores: for all the compiler knows a load might read what was
            // stored to shared memory, and would wait for that, and so for the load before.
            const REAL left = own < a_count ? a.row(own)[start + lane] : (REAL)0;
            REAL right[OWN];
#pragma unroll
            for (int k = 0; k < OWN; ++k) {
                const int n = own + SIDE * k;
                right[k] = n < b_count ? b.row(n)[start + lane] : (REAL)0;
            }
            a_tile[lane][warp].of[r] = left;
#pragma unroll
            for (int k = 0; k < OWN; ++k) b_tile[own + SIDE * k][lane] = right[k];
        }
        __syncthreads();
        if (warp * ROWS < a_count) {
#pragma unroll 1
            for (int c = 0; c < columns; ++c) {
                const Four left = a_tile[c][warp];
#pragma unroll
                for (int k = 0; k < OWN; ++k) {
                    if (WARP * k >= b_count) break;  // the same for the whole block
                    const REAL right = b_tile[lane + WARP * k][c];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) sum[k].of[r] += left.of[r] * right;
                }
            }
        }
        __syncthreads();  // all have read the tiles before they are written again
        start += COLUMNS;
    } while (start < a.width);
#pragma unroll
    for (int k = 0; k < OWN; ++k) sums[WARP * k] = sum[k];
}

// sums.of[k].of[r] += Σ_n weights[n].of[r] * rows(n)[lane + 32 k]. `weights` is of this warp, whose
// lanes meet at a __syncwarp before they call. UNROLLED as often as registers allow.
template <int UNROLLED = 2, class Source>
__device__ __forceinline__ void add_weighted(
    Kept& sums, const Four* weights, Source rows, int count) {
    const int lane = threadIdx.x % WARP;
#pragma unroll UNROLLED
    for (int n = 0; n < count; ++n) {
        const Four factor = weights[n];
        const auto* row = rows.row(n) + lane;
#pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            if (lane + WARP * k >= rows.width) break;
            const REAL value = row[WARP * k];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums.of[k].of[r] += factor.of[r] * value;
        }
    }
}

// body(c, sums) for each column c that is not kept, with sums.of[r] = Σ_n weights[n].of[r] *
// rows(n)[c]. After `add_weighted`.
template <class Source, class Body>
__device__ __forceinline__ void weighted_sums(
    const Four* weights, Source rows, int count, Body body) {
    for (int c = KEPT * WARP + threadIdx.x % WARP; c < rows.width; c += WARP) {
        Four sum = {};
#pragma unroll(AT_ONCE / 2)
        for (int n = 0; n < count; ++n) {
            const Four factor = weights[n];
            const REAL value = rows.row(n)[c];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sum.of[r] += factor.of[r] * value;
        }
        body(c, sum);
    }
}

// Row `row + r` of `to`, r < count, becomes sums.of[r], or has it added, in column c.
__device__ __forceinline__ void put(Output to, int row, int count, int c, Four sums, bool add) {
    REAL* place = to.row(row) + c;
#pragma unroll
    for (int r = 0; r < ROWS; ++r, place += to.stride) {
        if (r >= count) break;
        *place = add ? *place + sums.of[r] : sums.of[r];
    }
}

// `put` of the columns that are kept.
__device__ __forceinline__ void put_kept(
    Output to, int row, int count, const Kept& sums, bool add) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < KEPT; ++k)
        if (lane + WARP * k < to.width) put(to, row, count, lane + WARP * k, sums.of[k], add);
}

// Zeros in rows `first` to `end` of `to`, by `threads` of which this one is `thread`.
__device__ __forceinline__ void clear(Output to, int first, int end, int thread, int threads) {
    for (int n = first; to.first && n < end; ++n)
        for (int c = thread; c < to.width; c += threads) to.row(n)[c] = 0;
}
