// Tiles of 32 x 32 scores, which a block of eight warps makes in float32 or float64:
//
//                lanes 0 … 31: keys
//     warp 0   queries 0 … 3               Scores are summed from shared memory, by columns. A warp
//       …        …                         has whole rows of them, so softmax needs shuffles only.
//     warp 7   queries 28 … 31             What is summed over tiles lies in the output itself.
//
// Block 256, or 512 where all sentences have one query.

constexpr int SIDE = 32, COLUMNS = 32, ROWS = 4, WARPS = SIDE / ROWS;  // of a tile
constexpr int LOADED = AT_ONCE / 2;  // rows of both factors, at once
constexpr int CHUNK = WARPS * WARP;  // keys of a lone query whose scores are kept at a time

// Numbers of the four rows of a warp.
struct __align__(16) Four {
    REAL of[ROWS];
};

// products.of[r] = a(4 * warp + r) · b(lane), 0 beyond the counts. All threads must call.
template <class Source>
__device__ __forceinline__ Four products(Input a, int a_count, Source b, int b_count) {
    __shared__ Four a_tile[COLUMNS][WARPS + 1];
    __shared__ REAL b_tile[SIDE][COLUMNS + 1];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Four sum = {};
    int start = 0;
    do {  // once for no columns too: callers count on a barrier
        const int columns = min(COLUMNS, a.width - start);
#pragma unroll 1
        for (int own = 0; own < ROWS && lane < columns; own += LOADED) {
            // Loads come before stores: for all the compiler knows a load might read what was
            // stored to shared memory, and would wait for that, and so for the load before.
            REAL left[LOADED], right[LOADED];
#pragma unroll
            for (int r = 0; r < LOADED; ++r) {
                const int n = warp * ROWS + own + r;
                left[r] = n < a_count ? a.row(n)[start + lane] : (REAL)0;
                right[r] = n < b_count ? b.row(n)[start + lane] : (REAL)0;
            }
#pragma unroll
            for (int r = 0; r < LOADED; ++r) {
                a_tile[lane][warp].of[own + r] = left[r];
                b_tile[warp * ROWS + own + r][lane] = right[r];
            }
        }
        __syncthreads();
        if (warp * ROWS < a_count) {
#pragma unroll(AT_ONCE / 2)
            for (int c = 0; c < columns; ++c) {
                const Four left = a_tile[c][warp];
                const REAL right = b_tile[lane][c];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sum.of[r] += left.of[r] * right;
            }
        }
        __syncthreads();  // all have read the tiles before they are written again
        start += COLUMNS;
    } while (start < a.width);
    return sum;
}

// body(c, sums) for each column c, with sums.of[r] = Σ_n weights[n].of[r] * rows(n)[c]. `weights`
// is of this warp: all its lanes must call, and meet at a barrier before they write it again.
template <class Source, class Body>
__device__ __forceinline__ void weighted_sums(
    const Four* weights, Source rows, int count, Body body) {
    const int lane = threadIdx.x % WARP;
    __syncwarp();
    for (int c = lane; c < rows.width; c += WARP) {
        Four sum = {};
#pragma unroll AT_ONCE
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

// Zeros in rows `first` to `end` of `to`, by `threads` of which this one is `thread`.
__device__ __forceinline__ void clear(Output to, int first, int end, int thread, int threads) {
    for (int n = first; to.first && n < end; ++n)
        for (int c = thread; c < to.width; c += threads) to.row(n)[c] = 0;
}
