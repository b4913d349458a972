// Dot-product attention on tensor cores: `dot_attention` of dot_product.cu, with rounded factors.

#include "dot_product.cuh"
#include "mma.cuh"
#include "dot_product_mma.cuh"

// Up to 64 queries of a sentence.
template <Precision P>
__device__ __forceinline__ void attend(const Work& work, Tile& key_tile, Tile& value_tile) {
    const Lane lane = lane_of_warp();
    const int own = threadIdx.x / WARP * WARP_ROWS, row = work.first + own;
    const int count = min(MMA_SIDE, work.queries - work.first);
    const int low = work.low(work.first), high = work.high(work.first + count);
    Features y = {};
    REAL peak[2] = {-infinity(), -infinity()}, total[2] = {};
    if (low < high) begin_tile(key_tile, work.k.from(low), high - low);
    wait_for_copies();
    for (int start = low; start < high; start += TILE_ROWS) {
        __syncthreads();  // the keys are there; all have read the values before
        begin_tile(value_tile, work.v.from(start), high - start);
        Scores p;
        if (own < count) {  // the same for the whole warp
            products_of_tile<P>(p, work.q.from(row), count - own, key_tile);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int i = row + lane.row(2 * r);
                REAL highest = peak[r], sum = 0;
#pragma unroll
                for (int n = 0; n < PARTS; ++n)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; ++e) {
                        const int j = start + lane.column(n, e);
                        p[n][e] = work.sees(i, j) ? work.score<true>(p[n][e], i, j) : -infinity();
                        highest = Max::combine(highest, p[n][e]);
                    }
                highest = row_reduce<Max>(highest);
                const REAL shift = shift_of(highest), factor = exp(peak[r] - shift);
#pragma unroll
                for (int n = 0; n < PARTS; ++n)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; ++e) {
                        p[n][e] = exp(p[n][e] - shift);
                        sum += p[n][e];
                        p[n][e] = work.dropped<true>(p[n][e], i, start + lane.column(n, e));
                    }
                total[r] = total[r] * factor + row_reduce<Add>(sum);
                peak[r] = highest;
#pragma unroll
                for (int part = 0; part < COLUMN_PARTS; ++part)
                    y[part][2 * r] *= factor, y[part][2 * r + 1] *= factor;
            }
        }
        wait_for_copies();
        __syncthreads();  // the values are there; all have read the keys
        if (start + TILE_ROWS < high)
            begin_tile(key_tile, work.k.from(start + TILE_ROWS), high - start - TILE_ROWS);
        if (own < count) add_weighted<P>(y, p, value_tile, work.v.width);
        wait_for_copies();
    }
    if (own >= count) return;
#pragma unroll
    for (int part = 0; part < COLUMN_PARTS; ++part)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (total[e / 2] != 0) y[part][e] /= total[e / 2];
    put_features(work.y.from(row), count - own, y, false);
#pragma unroll
    for (int r = 0; r < 2; ++r)
        if (lane.t == 0 && work.log_sums && own + lane.row(2 * r) < count)
            work.log_sums[(row + lane.row(2 * r)) * work.heads] = log_sum_of(peak[r], total[r]);
}

template <Precision P>
__device__ __forceinline__ void attend_block(const Work& work, Tile (&tiles)[2]) {
    if constexpr (sizeof(REAL) == sizeof(float)) attend<P>(work, tiles[0], tiles[1]);
}

// `dot_attention_extended` with factors of TF32 or, if `short_factors`, of bfloat16. Matrices begin
// at multiples of 16 bytes. Grid (tiles of 64 queries, heads). Block 128.
extern "C" __global__ void __launch_bounds__(128, 3) dot_attention_mma(const REAL* queries,
    const REAL* keys, const REAL* values, REAL* out, REAL* log_sums, const long long* tiles,
    const long long* query_offsets, const long long* key_offsets, const REAL* scales,
    const long long* masks, const bool* visible, int sentences, int heads, int shared,
    int key_width, int value_width, int query_row, int key_row, int value_row, const REAL* bias,
    const int* rows, int zero, int columns, const long long* pairs, const unsigned char* features,
    int feature_bytes, const unsigned* streams, unsigned bound, REAL scale, REAL softcap,
    const int* starts, bool short_factors) {
    __shared__ Work work;
    __shared__ __align__(16) Tile tile_pair[2];
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row};
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums, blockIdx.y, MMA_SIDE);
        tables.extend(work,
            {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
                softcap, starts},
            blockIdx.y);
        work.y = tables.head_of(out, work.query, value_width, blockIdx.y);
    }
    __syncthreads();
    if (short_factors) attend_block<Precision::BFLOAT16>(work, tile_pair);
    else attend_block<Precision::TF32>(work, tile_pair);
}
