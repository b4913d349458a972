// Gradients of dot-product attention; tables, grids and blocks are those of the header.
//
// p = exp(score - log_sum), dp_ij = dout_i · v_j, mean_i = Σ_j p_ij dp_ij and
// ds = scale * p * (dp - mean). A mean is dout_i · out_i too, since out_i = Σ_j p_ij v_j: where
// `out` is there, keys are gone through once for the gradients of queries.

#include "dot_product.cuh"
#include "dot_product_tiles.cuh"

// means, and dq = ds k unless it is not wanted, of up to 32 queries of a sentence.
template <bool EXTENDED>
__device__ __forceinline__ void slopes_of_queries(const Work& work) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.queries - work.first), row = work.first + own;
    const int low = work.low(work.first), high = work.high(work.first + count);
    __shared__ Four weights[WARPS][OTHERS], slopes[WARPS][OTHERS];
    __shared__ REAL means[SIDE];
    Four *p = weights[own / ROWS] + lane, *dp = slopes[own / ROWS] + lane;
    Kept dq = {};
    auto add_to_mean = [&](int r, REAL number) {
        number = warp_reduce<Add>(number);
        if (lane == 0) means[r] += number;
    };
    const bool knows_out = work.out.first;
#pragma unroll 1
    for (int r = own; r < own + ROWS; ++r) {
        if (lane == 0) means[r] = 0;
        if (!knows_out || r >= count) continue;
        const REAL *dy = work.dy.row(work.first + r), *out = work.out.row(work.first + r);
        REAL sum = 0;
        for (int c = lane; c < work.dy.width; c += WARP) sum += dy[c] * out[c];
        add_to_mean(r, sum);
    }
    for (int pass = knows_out; pass < (work.dq.first ? 2 : 1); ++pass) {
        for (int start = low; start < high; start += OTHERS) {
            const int seen = min(OTHERS, high - start);
            if (pass == knows_out || high - low > OTHERS) {  // the only tile is still there
                products(p, work.q.from(work.first), count, work.k.from(start), seen);
                products(dp, work.dy.from(work.first), count, work.v.from(start), seen);
#pragma unroll 1
                for (int n = 0; n < ROWS * OWN && n / ROWS * WARP < seen; ++n) {
                    read_anew();
                    const int i = row + n % ROWS, k = n / ROWS * WARP, j = start + lane + k;
                    REAL &weight = p[k].of[n % ROWS], &of_weight = dp[k].of[n % ROWS];
                    weight = work.sees(i, j) ? exp(work.score<EXTENDED>(weight, i, j) -
                                                   work.log_sums[i * work.heads])
                                             : (REAL)0;
                    if (EXTENDED) of_weight = work.dropped<true>(of_weight, i, j);
                }
            }
            if (own >= count) continue;  // the same for the whole warp
            __syncwarp();                // the means are there
#pragma unroll 1
            for (int r = 0; r < ROWS; ++r) {
                REAL sum = 0;
#pragma unroll
                for (int k = 0; k < OTHERS && k < seen; k += WARP) {
                    REAL& weight = p[k].of[r];
                    if (pass == 0) sum += weight * dp[k].of[r];
                    else
                        weight = work.slope<EXTENDED>(
                            weight, dp[k].of[r], means[own + r], row + r, start + lane + k);
                }
                if (pass == 0) add_to_mean(own + r, sum);
            }
            if (pass == 0) continue;
            __syncwarp();
            add_weighted(dq, weights[own / ROWS], work.k.from(start), seen);
            weighted_sums(weights[own / ROWS], work.k.from(start), seen,
                [&](int c, Four sum) { put(work.dq, row, count - own, c, sum, start > low); });
        }
    }
    for (int r = own; lane == 0 && r < min(own + ROWS, count); ++r)
        work.means[(work.first + r) * work.heads] = means[r];
    if (low >= high) clear(work.dq, row, min(row + ROWS, work.queries), lane, WARP);
    else if (work.dq.first) put_kept(work.dq, row, count - own, dq, false);
}

// All gradients that are wanted of a sentence with one query.
__device__ __forceinline__ void slopes_alone(const Work& work, bool accumulate) {
    __shared__ REAL p[CHUNK], dp[CHUNK];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int high = work.high(1);
    REAL mean = 0;
    auto put = [&](Output to, int n, REAL weight, const REAL* x) {
        for (int c = lane; to.first && c < to.width; c += WARP) {
            REAL* place = to.row(n) + c;
            *place = accumulate ? *place + weight * x[c] : weight * x[c];
        }
    };
    for (int pass = 0; pass < 2; ++pass) {
        for (int start = 0; start < high; start += CHUNK) {
            const int count = min(CHUNK, high - start);
            const Input rows = work.k.from(start);
            if (pass == 0 || high > CHUNK) {  // the only chunk is still there
                __syncthreads();              // all have read the chunk before
                dots_of_rows(rows, count, work.q.first, [&](int n, REAL dot) {
                    p[n] = work.sees(0, start + n) ? exp(dot * work.scale - work.log_sums[0])
                                                   : (REAL)0;
                });
                dots_of_rows(work.v.from(start), count, work.dy.first,
                    [&](int n, REAL dot) { dp[n] = dot; });
                __syncthreads();
            }
            if (pass == 0) {
                for (int n = lane; n < count; n += WARP) mean += p[n] * dp[n];
                continue;
            }
            for (int n = warp; n < count; n += warps) {
                put(work.dv, start + n, p[n], work.dy.first);
                put(work.dk, start + n, work.slope<false>(p[n], dp[n], mean, 0, 0), work.q.first);
            }
            sums_of_columns<REAL>(
                count, work.dq.first ? rows.width : 0,
                [&](int n, int c) {
                    return work.slope<false>(p[n], dp[n], mean, 0, 0) * rows.row(n)[c];
                },
                [&](int c, REAL sum) {
                    REAL* place = work.dq.first + c;
                    *place = start ? *place + sum : sum;
                });
        }
        if (pass == 0) mean = warp_reduce<Add>(mean);  // every warp makes it for itself
    }
    if (threadIdx.x == 0 && work.means) work.means[0] = mean;
    if (high <= 0) clear(work.dq, 0, 1, threadIdx.x, blockDim.x);
    if (!accumulate) {
        clear(work.dv, max(0, high), work.keys, threadIdx.x, blockDim.x);
        clear(work.dk, max(0, high), work.keys, threadIdx.x, blockDim.x);
    }
}

// dv = pᵀ dout and dk = dsᵀ q, where wanted, of up to 32 keys of a sentence with several queries,
// or with none.
template <bool EXTENDED>
__device__ __forceinline__ void slopes_of_keys(const Work& work) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.keys - work.first), row = work.first + own;
    const int low = max(0, work.first - work.mask.right);
    const int high = min(work.queries, work.first + count + work.mask.left);
    __shared__ Four weights[WARPS][OTHERS];
    __shared__ Four slopes[WARPS][OTHERS];  // of the weights; before, weights of dv that are not p
    Four *p = weights[own / ROWS] + lane, *dp = slopes[own / ROWS] + lane;
    Kept dk = {}, dv = {};
    for (int start = low; start < high; start += OTHERS) {
        const int seen = min(OTHERS, high - start), first = start + lane;
        auto add = [&](Kept& sums, Output to, const Four* factors, Input rows) {
            if (own >= count) return;  // the same for the whole warp
            __syncwarp();
            add_weighted<EXTENDED ? 1 : 2>(sums, factors, rows, seen);
            weighted_sums(factors, rows, seen, [&](int c, Four sum) {
                put(to, row, count - own, c, sum, work.adds || start > low);
            });
        };
        products(p, work.k.from(work.first), count, work.q.from(start), seen);
#pragma unroll 1
        for (int n = 0; n < ROWS * OWN; ++n) {
            read_anew();
            const int k = n / ROWS * WARP, i = first + k, j = row + n % ROWS;
            REAL& weight = p[k].of[n % ROWS];
            weight = work.sees(i, j)
                         ? exp(work.score<EXTENDED>(weight, i, j) - work.log_sums[i * work.heads])
                         : (REAL)0;
            if (EXTENDED) dp[k].of[n % ROWS] = work.dropped<true>(weight, i, j);
        }
        if (work.dv.first)
            add(dv, work.dv, EXTENDED ? slopes[own / ROWS] : weights[own / ROWS],
                work.dy.from(start));
        if (!work.dk.first) continue;
        products(dp, work.v.from(work.first), count, work.dy.from(start), seen);
#pragma unroll 1
        for (int n = 0; n < ROWS * OWN && n / ROWS * WARP < seen; ++n) {
            read_anew();
            const int k = n / ROWS * WARP, i = first + k, r = n % ROWS;
            const REAL mean = i < high ? work.means[i * work.heads] : (REAL)0;
            const REAL own_dp = work.dropped<EXTENDED>(dp[k].of[r], i, row + r);
            p[k].of[r] = work.slope<EXTENDED>(p[k].of[r], own_dp, mean, i, row + r);
        }
        add(dk, work.dk, weights[own / ROWS], work.q.from(start));
    }
    if (low < high) {
        if (work.dv.first) put_kept(work.dv, row, count - own, dv, work.adds);
        if (work.dk.first) put_kept(work.dk, row, count - own, dk, work.adds);
    } else if (!work.adds) {
        clear(work.dv, row, min(row + ROWS, work.keys), lane, WARP);
        clear(work.dk, row, min(row + ROWS, work.keys), lane, WARP);
    }
}

template <bool EXTENDED>
__device__ __forceinline__ void queries_block(const REAL* queries, const REAL* keys,
    const REAL* values, REAL* log_sums, const REAL* out, const REAL* dout, REAL* means,
    REAL* dqueries, REAL* dkeys, REAL* dvalues, bool accumulate, Tables tables,
    Extension extension) {
    __shared__ Work work;
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums, blockIdx.y, SIDE);
        tables.find_gradients(work, dout, means, dkeys, dvalues, blockIdx.y);
        work.out = tables.head_of(out, work.query, tables.value_width, blockIdx.y);
        if (EXTENDED) tables.extend(work, extension, blockIdx.y);
        work.dq = tables.columns_of(
            dqueries, work.query, tables.dquery_row, tables.key_width, blockIdx.y);
    }
    __syncthreads();
    if (!EXTENDED && work.queries == 1) slopes_alone(work, accumulate);
    else slopes_of_queries<EXTENDED>(work);
}

// Gradients of queries; where a sentence has one query, of its keys and values too. Those that are
// NULL are not wanted, or are made by dot_attention_backward_keys; dkeys and dvalues are added to
// if `accumulate`, and may then be the same. Overwrites means unless it is NULL.
extern "C" __global__ void __launch_bounds__(512, 2)
    dot_attention_backward(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* out, const REAL* dout, REAL* means, REAL* dqueries, REAL* dkeys,
        REAL* dvalues, bool accumulate, const long long* tiles, const long long* query_offsets,
        const long long* key_offsets, const REAL* scales, const long long* masks,
        const bool* visible, int sentences, int heads, int shared, int key_width, int value_width,
        int query_row, int key_row, int value_row, int dquery_row, int dkey_row, int dvalue_row) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    queries_block<false>(queries, keys, values, log_sums, out, dout, means, dqueries, dkeys,
        dvalues, accumulate, tables, {});
}

// Gradients of queries, with a bias and dropout. Overwrites means.
extern "C" __global__ void __launch_bounds__(256, 4)
    dot_attention_backward_extended(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* out, const REAL* dout, REAL* means, REAL* dqueries,
        const long long* tiles, const long long* query_offsets, const long long* key_offsets,
        const REAL* scales, const long long* masks, const bool* visible, int sentences, int heads,
        int shared, int key_width, int value_width, int query_row, int key_row, int value_row,
        int dquery_row, int dkey_row, int dvalue_row, const REAL* bias, const int* rows, int zero,
        int columns, const long long* pairs, const unsigned char* features, int feature_bytes,
        const unsigned* streams, unsigned bound, REAL scale, REAL softcap) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    queries_block<true>(queries, keys, values, log_sums, out, dout, means, dqueries, nullptr,
        nullptr, false, tables,
        {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
            softcap});
}

template <bool EXTENDED>
__device__ __forceinline__ void keys_block(const REAL* queries, const REAL* keys,
    const REAL* values, REAL* log_sums, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues,
    bool accumulate, Tables tables, Extension extension) {
    __shared__ Work work;
    if (threadIdx.x == 0) {
        work.adds = accumulate;
        const int head = blockIdx.y * tables.shared;
        tables.find(work, queries, keys, values, log_sums, head, SIDE);
        tables.find_gradients(work, dout, means, dkeys, dvalues, head);
        tables.extend(work, extension, head);
    }
    for (int part = 0; part < tables.shared; ++part) {
        __syncthreads();
        slopes_of_keys<EXTENDED>(work);
        if (part + 1 == tables.shared) return;
        __syncthreads();  // all have read the head before
        if (threadIdx.x == 0) tables.next_head(work), work.adds = true;
    }
}

// Gradients of keys and values of the sentences that have tiles; tiles are 32 keys here. A block sums
// over the heads of queries that read its head of keys, in their order.
extern "C" __global__ void __launch_bounds__(512, 2)
    dot_attention_backward_keys(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues, bool accumulate,
        const long long* tiles, const long long* query_offsets, const long long* key_offsets,
        const REAL* scales, const long long* masks, const bool* visible, int sentences, int heads,
        int shared, int key_width, int value_width, int query_row, int key_row, int value_row,
        int dquery_row, int dkey_row, int dvalue_row) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    keys_block<false>(
        queries, keys, values, log_sums, dout, means, dkeys, dvalues, accumulate, tables, {});
}

// The same with a bias and dropout.
extern "C" __global__ void __launch_bounds__(256, 4)
    dot_attention_backward_keys_extended(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues, bool accumulate,
        const long long* tiles, const long long* query_offsets, const long long* key_offsets,
        const REAL* scales, const long long* masks, const bool* visible, int sentences, int heads,
        int shared, int key_width, int value_width, int query_row, int key_row, int value_row,
        int dquery_row, int dkey_row, int dvalue_row, const REAL* bias, const int* rows, int zero,
        int columns, const long long* pairs, const unsigned char* features, int feature_bytes,
        const unsigned* streams, unsigned bound, REAL scale, REAL softcap) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    keys_block<true>(queries, keys, values, log_sums, dout, means, dkeys, dvalues, accumulate,
        tables,
        {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
            softcap});
}

// slopes = p (dp - mean) of up to 32 queries of a sentence in one head, tile by tile of keys: body(start,
// seen) for the `seen` keys from `start` on.
template <class Body>
__device__ __forceinline__ void each_tile_of_slopes(
    const Work& work, REAL (&slopes)[SIDE][OTHERS + 1], Body body) {
    __shared__ Four weights[WARPS][OTHERS], of_weights[WARPS][OTHERS];
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.queries - work.first), row = work.first + own;
    const int low = work.low(work.first), high = work.high(work.first + count);
    Four *p = weights[own / ROWS] + lane, *dp = of_weights[own / ROWS] + lane;
    for (int start = low; start < high; start += OTHERS) {
        const int seen = min(OTHERS, high - start);
        products(p, work.q.from(work.first), count, work.k.from(start), seen);
        products(dp, work.dy.from(work.first), count, work.v.from(start), seen);
#pragma unroll 1
        for (int n = 0; n < ROWS * OWN; ++n) {
            read_anew();
            const int r = n % ROWS, k = n / ROWS * WARP, i = row + r, j = start + lane + k;
            REAL slope = 0;
            if (work.sees(i, j)) {
                slope = exp(work.score<true>(p[k].of[r], i, j) - work.log_sums[i * work.heads]) *
                        (work.dropped<true>(dp[k].of[r], i, j) - work.means[i * work.heads]);
            }
            slopes[own + r][lane + k] = slope;
        }
        __syncthreads();
        body(start, seen);
    }
}

// The gradient of a bias's table, by up to 32 queries of a sentence in one head: row r of `sums` becomes
// the sum of the slopes of all scores that row r of the table was added to. A row lies `columns` after
// the one before.
__device__ __forceinline__ void slopes_of_rows(const Work& work, REAL* sums, int rows) {
    constexpr int DIAGONALS = SIDE + OTHERS - 1;  // of a tile: pairs of one distance
    __shared__ REAL slopes[SIDE][OTHERS + 1], diagonals[DIAGONALS];
    __shared__ int row_of[DIAGONALS];
    const int count = min(SIDE, work.queries - work.first);
    for (int r = threadIdx.x; r < rows; r += blockDim.x) sums[(long long)r * work.bias.columns] = 0;
    each_tile_of_slopes(work, slopes, [&](int start, int seen) {
        for (int r = threadIdx.x; work.bias.across && r < rows; r += blockDim.x) {
            REAL sum = 0;
            for (int i = 0; i < count; ++i)
                for (int j = 0; j < seen; ++j)
                    if (work.bias.row(work.first + i, start + j) == r) sum += slopes[i][j];
            sums[(long long)r * work.bias.columns] += sum;
        }
        if (work.bias.across) return;
        if (threadIdx.x < DIAGONALS) {
            const int shift = (int)threadIdx.x - (SIDE - 1);
            const int distance = start - work.first + shift;
            REAL sum = 0;
            for (int i = max(0, -shift); i < min(SIDE, OTHERS - shift); ++i)
                sum += slopes[i][i + shift];
            diagonals[threadIdx.x] = sum;
            row_of[threadIdx.x] =
                distance > -work.queries && distance < work.keys ? work.bias.rows[distance] : -1;
        }
        __syncthreads();
        for (int r = threadIdx.x; r < rows; r += blockDim.x) {
            REAL sum = 0;
            for (int n = 0; n < DIAGONALS; ++n)
                if (row_of[n] == r) sum += diagonals[n];
            sums[(long long)r * work.bias.columns] += sum;
        }
    });
}

// sums (tiles, rows, heads), or (tiles, heads, rows) for all heads alike: what each tile of 32 queries adds to the gradient of the table of `rows`
// rows. means as dot_attention_backward_extended leaves them. Grid (tiles, heads). Block 256.
extern "C" __global__ void __launch_bounds__(256, 4) dot_attention_backward_bias(
    const REAL* queries, const REAL* keys, const REAL* values, REAL* log_sums, const REAL* dout,
    REAL* means, REAL* sums, int count, const long long* tiles, const long long* query_offsets,
    const long long* key_offsets, const REAL* scales, const long long* masks, const bool* visible,
    int sentences, int heads, int shared, int key_width, int value_width, int query_row,
    int key_row, int value_row, int dquery_row, int dkey_row, int dvalue_row, const REAL* bias,
    const int* rows, int zero, int columns, const long long* pairs, const unsigned char* features,
    int feature_bytes, const unsigned* streams, unsigned bound, REAL scale, REAL softcap) {
    __shared__ Work work;
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums, blockIdx.y, SIDE);
        tables.find_gradients(work, dout, means, nullptr, nullptr, blockIdx.y);
        tables.extend(work,
            {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
                softcap},
            blockIdx.y);
    }
    __syncthreads();
    const long long first = (long long)blockIdx.x * count * heads;
    slopes_of_rows(work, sums + first + (long long)blockIdx.y * (columns > 1 ? 1 : count), count);
}

// dpairs: the gradient of the matrices of a bias. Where a sentence has one for all heads, these are added
// in their order; grid (tiles, 1) then, else (tiles, heads). Block 256.
extern "C" __global__ void __launch_bounds__(256, 4) dot_attention_backward_pairs(
    const REAL* queries, const REAL* keys, const REAL* values, REAL* log_sums, const REAL* dout,
    REAL* means, REAL* dpairs, const long long* tiles, const long long* query_offsets,
    const long long* key_offsets, const REAL* scales, const long long* masks, const bool* visible,
    int sentences, int heads, int shared, int key_width, int value_width, int query_row,
    int key_row, int value_row, int dquery_row, int dkey_row, int dvalue_row, const REAL* bias,
    const int* rows, int zero, int columns, const long long* pairs, const unsigned char* features,
    int feature_bytes, const unsigned* streams, unsigned bound, REAL scale, REAL softcap) {
    __shared__ Work work;
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row, dquery_row, dkey_row,
        dvalue_row};
    __shared__ REAL slopes[SIDE][OTHERS + 1];
    for (int head = blockIdx.y; head < heads; head += gridDim.y) {
        __syncthreads();  // all are done with the head before
        if (threadIdx.x == 0) {
            tables.find(work, queries, keys, values, log_sums, head, SIDE);
            tables.find_gradients(work, dout, means, nullptr, nullptr, head);
            tables.extend(work,
                {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale,
                    softcap},
                head);
        }
        __syncthreads();
        const int count = min(SIDE, work.queries - work.first);
        const bool adds = head > 0 && work.bias.step == 0;
        REAL* out = dpairs + (work.bias.numbers - bias) + (long long)work.first * work.keys;
        for (int n = threadIdx.x; !adds && n < count * work.keys; n += blockDim.x) out[n] = 0;
        each_tile_of_slopes(work, slopes, [&](int start, int seen) {
            for (int n = threadIdx.x; n < count * seen; n += blockDim.x)
                out[(long long)(n / seen) * work.keys + start + n % seen] +=
                    slopes[n / seen][n % seen];
        });
    }
}
