// Gradients of dot-product attention on tensor cores: those of dot_product_backward.cu, with rounded
// factors. Means are sums of float32 products.

#include "dot_product.cuh"
#include "mma.cuh"
#include "dot_product_mma.cuh"

// means, and dq = ds k unless it is not wanted, of up to 64 queries of a sentence.
template <Precision P>
__device__ __forceinline__ void slopes_of_queries(
    const Work& work, Tile& key_tile, Tile& value_tile) {
    const Lane lane = lane_of_warp();
    const int own = threadIdx.x / WARP * WARP_ROWS, row = work.first + own;
    const int count = min(MMA_SIDE, work.queries - work.first);
    const int low = work.low(work.first), high = work.high(work.first + count);
    const bool knows_out = work.out.first;
    REAL mean[2] = {}, log_sum[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = lane.row(2 * r);
        if (own + i >= count) continue;
        log_sum[r] = work.log_sums[(row + i) * work.heads];
        const REAL *dy = work.dy.row(row + i), *out = work.out.row(row + i);
        for (int c = lane.t; knows_out && c < work.dy.width; c += 4) mean[r] += dy[c] * out[c];
    }
    Features dq = {};
    for (int pass = knows_out; pass < (work.dq.first ? 2 : 1); ++pass) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (pass == 1) mean[r] = row_reduce<Add>(mean[r]);
        for (int start = low; start < high; start += TILE_ROWS) {
            begin_tile(key_tile, work.k.from(start), high - start);
            begin_tile(value_tile, work.v.from(start), high - start);
            wait_for_copies();
            __syncthreads();
            // Computed again: kept over the loop they would spill.
            const int own = threadIdx.x / WARP * WARP_ROWS, row = work.first + own;
            if (own < count) {  // the same for the whole warp
                Scores p, dp;
                products_of_tile<P>(p, work.q.from(row), count - own, key_tile);
                products_of_tile<P>(dp, work.dy.from(row), count - own, value_tile);
#pragma unroll
                for (int n = 0; n < PARTS; ++n) {
                    read_anew();
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int i = row + lane.row(e), j = start + lane.column(n, e), r = e / 2;
                        const bool sees = work.sees(i, j);
                        p[n][e] = sees ? exp(work.score<true>(p[n][e], i, j) - log_sum[r]) : 0;
                        dp[n][e] = work.dropped<true>(dp[n][e], i, j);
                        if (pass == 0) mean[r] += p[n][e] * dp[n][e];
                        else p[n][e] = work.slope<true>(p[n][e], dp[n][e], mean[r], i, j);
                    }
                }
                if (pass == 1) add_weighted<P>(dq, p, key_tile, work.k.width);
            }
            __syncthreads();  // all have read the tiles
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (!work.dq.first) mean[r] = row_reduce<Add>(mean[r]);
        const int i = lane.row(2 * r);
        if (lane.t == 0 && own + i < count) work.means[(row + i) * work.heads] = mean[r];
    }
    if (work.dq.first) put_features(work.dq.from(row), count - own, dq, false);
}

// dv = pᵀ dout and dk = dsᵀ q, where wanted, of up to 64 keys of a sentence: the sums over the heads
// of queries that read them. `next_head` makes work that of the next one.
template <Precision P, class NextHead>
__device__ __forceinline__ void slopes_of_keys(const Work& work, Tile& query_tile, Tile& slope_tile,
    int shared, bool accumulate, NextHead next_head) {
    __shared__ REAL log_sums[TILE_ROWS], means[TILE_ROWS];
    const Lane lane = lane_of_warp();
    const int own = threadIdx.x / WARP * WARP_ROWS, row = work.first + own;
    const int count = min(MMA_SIDE, work.keys - work.first);
    const int low = max(0, work.first - work.mask.right);
    const int high = min(work.queries, work.first + count + work.mask.left);
    Features dk = {}, dv = {};
    for (int part = 0; part < shared; ++part) {
        for (int start = low; start < high; start += TILE_ROWS) {
            begin_tile(query_tile, work.q.from(start), high - start);
            begin_tile(slope_tile, work.dy.from(start), high - start);
            if (threadIdx.x < TILE_ROWS) {
                const int i = start + threadIdx.x;
                log_sums[threadIdx.x] = i < high ? work.log_sums[i * work.heads] : (REAL)0;
                means[threadIdx.x] = i < high ? work.means[i * work.heads] : (REAL)0;
            }
            wait_for_copies();
            __syncthreads();
            if (own < count) {  // the same for the whole warp
                Scores p, dp, kept;
                products_of_tile<P>(p, work.k.from(row), count - own, query_tile);
#pragma unroll
                for (int n = 0; n < PARTS; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        read_anew();
                        const int column = lane.column(n, e), i = start + column;
                        const int j = row + lane.row(e);
                        p[n][e] = work.sees(i, j)
                                      ? exp(work.score<true>(p[n][e], i, j) - log_sums[column])
                                      : 0;
                        kept[n][e] = work.dropped<true>(p[n][e], i, j);
                    }
                if (work.dv.first) add_weighted<P>(dv, kept, slope_tile, work.v.width);
                if (work.dk.first) {
                    products_of_tile<P>(dp, work.v.from(row), count - own, slope_tile);
#pragma unroll
                    for (int n = 0; n < PARTS; ++n)
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            read_anew();
                            const int column = lane.column(n, e), i = start + column;
                            const REAL own_dp = work.dropped<true>(dp[n][e], i, row + lane.row(e));
                            p[n][e] = work.slope<true>(
                                p[n][e], own_dp, means[column], i, row + lane.row(e));
                        }
                    add_weighted<P>(dk, p, query_tile, work.k.width);
                }
            }
            __syncthreads();  // all have read the tiles
        }
        if (part + 1 < shared) next_head();
    }
    if (work.dv.first) put_features(work.dv.from(row), count - own, dv, accumulate);
    if (work.dk.first) put_features(work.dk.from(row), count - own, dk, accumulate);
}

template <Precision P>
__device__ __forceinline__ void queries_block(const Work& work, Tile (&tiles)[2]) {
    if constexpr (sizeof(REAL) == sizeof(float)) slopes_of_queries<P>(work, tiles[0], tiles[1]);
}

template <Precision P, class NextHead>
__device__ __forceinline__ void keys_block(
    const Work& work, Tile (&tiles)[2], int shared, bool accumulate, NextHead next_head) {
    if constexpr (sizeof(REAL) == sizeof(float))
        slopes_of_keys<P>(work, tiles[0], tiles[1], shared, accumulate, next_head);
}

// `dot_attention_backward_extended` with factors of TF32 or, if `short_factors`, of bfloat16.
// Matrices begin at multiples of 16 bytes. Grid (tiles of 64 queries, heads). Block 128.
extern "C" __global__ void __launch_bounds__(128, 3)
    dot_attention_backward_mma(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* out, const REAL* dout, REAL* means, REAL* dqueries,
        const long long* tiles, const long long* query_offsets, const long long* key_offsets,
        const REAL* scales, const long long* masks, const bool* visible, int sentences, int heads,
        int shared, int key_width, int value_width, int query_row, int key_row, int value_row,
        int dquery_row, int dkey_row, int dvalue_row, const REAL* bias, const int* rows, int zero,
        int columns, const long long* pairs, const unsigned char* features, int feature_bytes,
        const unsigned* streams, unsigned bound, REAL scale, REAL softcap, bool short_factors) {
    __shared__ Work work;
    __shared__ __align__(16) Tile tile_pair[2];
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums, blockIdx.y, MMA_SIDE);
        tables.find_gradients(work, dout, means, nullptr, nullptr, blockIdx.y);
        tables.extend(work,
            {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
                softcap},
            blockIdx.y);
        work.out = tables.head_of(out, work.query, value_width, blockIdx.y);
        work.dq = tables.columns_of(dqueries, work.query, dquery_row, key_width, blockIdx.y);
    }
    __syncthreads();
    if (short_factors) queries_block<Precision::BFLOAT16>(work, tile_pair);
    else queries_block<Precision::TF32>(work, tile_pair);
}

// `dot_attention_backward_keys_extended` likewise. Grid (tiles of 64 keys, heads of keys). Block 128.
extern "C" __global__ void __launch_bounds__(128, 2)
    dot_attention_backward_keys_mma(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues, bool accumulate,
        const long long* tiles, const long long* query_offsets, const long long* key_offsets,
        const REAL* scales, const long long* masks, const bool* visible, int sentences, int heads,
        int shared, int key_width, int value_width, int query_row, int key_row, int value_row,
        int dquery_row, int dkey_row, int dvalue_row, const REAL* bias, const int* rows, int zero,
        int columns, const long long* pairs, const unsigned char* features, int feature_bytes,
        const unsigned* streams, unsigned bound, REAL scale, REAL softcap, bool short_factors) {
    __shared__ Work work;
    __shared__ __align__(16) Tile tile_pair[2];
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    if (threadIdx.x == 0) {
        const int head = blockIdx.y * shared;
        tables.find(work, queries, keys, values, log_sums, head, MMA_SIDE);
        tables.find_gradients(work, dout, means, dkeys, dvalues, head);
        tables.extend(work,
            {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
                softcap},
            head);
    }
    __syncthreads();
    auto next_head = [&] {
        if (threadIdx.x == 0) tables.next_head(work);
        __syncthreads();
    };
    if (short_factors)
        keys_block<Precision::BFLOAT16>(work, tile_pair, shared, accumulate, next_head);
    else keys_block<Precision::TF32>(work, tile_pair, shared, accumulate, next_head);
}
