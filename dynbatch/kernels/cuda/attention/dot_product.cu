// Dot-product attention of every sentence's queries over its own keys: CUDA versions of
// kernels/attention/dot_product.py and of the dot-product kernels of
// kernels/attention/single_query.py.
//
// Matrices are packed rows, with one head beside the other: queries (N_q, heads * key_width), keys
// (N_k, heads * key_width), values (N_k, heads * value_width), out and dout (N_q, heads *
// value_width). log_sums and means are (N_q, heads). Tables:
//
//     tiles          number of the first tile of each sentence; NULL: every sentence has one tile
//     query_offsets  first query of each sentence, and N_q; key_offsets likewise
//     scales         of each sentence's scores
//     masks, visible  what its queries see: `Mask` in attention.cuh
//
// Grid (tiles, heads). A block does a tile of 32 queries of one sentence in one head, or of 32 keys
// for the gradients of keys and values, and goes through the other side 32 rows at a time:
//
//                lanes 0 … 31: keys
//     warp 0   queries 0 … 3               Scores are summed from shared memory, by columns. A warp
//       …        …                         has whole rows of them, so softmax needs shuffles only.
//     warp 7   queries 28 … 31             What is summed over tiles lies in the output itself.
//
// A sentence with one query, as in a decoder's step, has its keys shared by the warps instead, and
// all its gradients made by one block. Block 256, or 512 where all sentences have one query.
//
// Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135: running maximum and sum of a row of
// scores, and scores made again in backward.

constexpr int SIDE = 32, COLUMNS = 32, ROWS = 4, WARPS = SIDE / ROWS;  // of a tile
constexpr int LOADED = AT_ONCE / 2;  // rows of both factors, at once
constexpr int CHUNK = WARPS * WARP;  // keys of a lone query whose scores are kept at a time

// Numbers of the four rows of a warp.
struct __align__(16) Four {
    REAL of[ROWS];
};

typedef Rows<const REAL> Input;
typedef Rows<REAL> Output;

// One head of one sentence, and the tile that this block does: in shared memory, to save registers.
// Rows of a matrix that is NULL begin at NULL.
struct Work {
    Input q, k, v, dy;
    Output y, dq, dk, dv;
    REAL *log_sums, *means;  // of the sentence's first query; `heads` from query to query
    REAL scale;
    Mask mask;
    long long query, key;  // first rows of the sentence
    int queries, keys, heads;
    int first;  // row of the sentence in the tile

    // Queries from `begin` to `end` may see keys from `low` to `high`.
    __device__ __forceinline__ int low(int begin) const { return max(0, begin - mask.left); }
    __device__ __forceinline__ int high(int end) const { return min(keys, end + mask.right); }

    __device__ __forceinline__ bool sees(int i, int j) const {
        return i < queries && j < keys && mask.sees(i, j);
    }
};

// The tables, and the sizes that go with them.
struct Tables {
    const long long *tiles, *query_offsets, *key_offsets;
    const REAL* scales;
    const long long* masks;
    const bool* visible;
    int sentences, heads, key_width, value_width;

    template <class T>
    __device__ __forceinline__ Rows<T> head_of(T* matrix, long long row, int width) const {
        const int stride = heads * width;
        return {matrix ? matrix + row * stride + (int)blockIdx.y * width : nullptr, stride, width};
    }

    __device__ __forceinline__ void find(Work& work, const REAL* queries, const REAL* keys,
        const REAL* values, REAL* log_sums) const {
        int k = blockIdx.x, tile = 0;
        if (tiles) {
            k = find_segment(tiles, 1, 0, sentences, blockIdx.x);
            tile = (int)(blockIdx.x - tiles[k]);
        }
        work.query = query_offsets[k];
        work.key = key_offsets[k];
        work.queries = (int)(query_offsets[k + 1] - work.query);
        work.keys = (int)(key_offsets[k + 1] - work.key);
        work.heads = heads;
        work.first = tile * SIDE;
        work.scale = scales[k];
        work.mask = mask_of(masks, visible, k);
        work.q = head_of(queries, work.query, key_width);
        work.k = head_of(keys, work.key, key_width);
        work.v = head_of(values, work.key, value_width);
        work.log_sums = log_sums ? log_sums + work.query * heads + blockIdx.y : nullptr;
    }

    __device__ __forceinline__ void find_gradients(
        Work& work, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues) const {
        work.dy = head_of(dout, work.query, value_width);
        work.dk = head_of(dkeys, work.key, key_width);
        work.dv = head_of(dvalues, work.key, value_width);
        work.means = means + work.query * heads + blockIdx.y;
    }
};

// What is subtracted from scores: their maximum, but 0 where all are -inf.
__device__ __forceinline__ REAL shift_of(REAL peak) { return peak == -infinity() ? (REAL)0 : peak; }

// products.of[r] = a(4 * warp + r) · b(lane), 0 beyond the counts. All threads must call.
__device__ __forceinline__ Four products(Input a, int a_count, Input b, int b_count) {
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
template <class Body>
__device__ __forceinline__ void weighted_sums(
    const Four* weights, Input rows, int count, Body body) {
    const int lane = threadIdx.x % WARP;
    __syncwarp();
    for (int c = lane; c < rows.width; c += WARP) {
        Four sum = {};
        const REAL* column = rows.first + c;
#pragma unroll AT_ONCE
        for (int n = 0; n < count; ++n, column += rows.stride) {
            const Four factor = weights[n];
            const REAL value = *column;
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

// The logarithm of Σ exp(score).
__device__ __forceinline__ REAL log_sum_of(REAL peak, REAL total) {
    return total == 0 ? infinity() : log(total) + shift_of(peak);
}

// Forward ----------------------------------------------------------------------------------------

// Up to 32 queries of a sentence with several.
__device__ __forceinline__ void attend(const Work& work) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.queries - work.first), row = work.first + own;
    const int low = work.low(work.first), high = work.high(work.first + count);
    __shared__ Four weights[WARPS][SIDE];
    __shared__ REAL peak[SIDE], total[SIDE], factor[SIDE];  // of each query, by the first lane
    Four& p = weights[own / ROWS][lane];
    if (lane == 0)
        for (int r = 0; r < ROWS; ++r) peak[own + r] = -infinity(), total[own + r] = 0;
    for (int start = low; start < high; start += SIDE) {
        const int seen = min(SIDE, high - start);
        p = products(work.q.from(work.first), count, work.k.from(start), seen);
        if (own >= count) continue;  // the same for the whole warp
#pragma unroll 1
        for (int r = 0; r < ROWS; ++r) {
            const bool sees = work.sees(row + r, start + lane);
            const REAL score = sees ? p.of[r] * work.scale : -infinity();
            const REAL highest = Max::combine(peak[own + r], warp_reduce<Max>(score));
            p.of[r] = exp(score - shift_of(highest));
            const REAL sum = warp_reduce<Add>(p.of[r]);
            __syncwarp();  // all have read the peak; a shuffle orders no memory
            if (lane > 0) continue;
            factor[own + r] = exp(peak[own + r] - shift_of(highest));
            total[own + r] = total[own + r] * factor[own + r] + sum;
            peak[own + r] = highest;
        }
        weighted_sums(weights[own / ROWS], work.v.from(start), seen, [&](int c, Four sum) {
            REAL* place = work.y.row(row) + c;
#pragma unroll
            for (int r = 0; r < ROWS; ++r, place += work.y.stride) {
                if (own + r >= count) break;
                REAL value = sum.of[r];
                if (start > low) value += *place * factor[own + r];
                if (start + SIDE >= high && total[own + r] != 0) value /= total[own + r];
                *place = value;
            }
        });
    }
    if (low >= high) clear(work.y, row, min(row + ROWS, work.queries), lane, WARP);
    for (int r = own; lane == 0 && work.log_sums && r < min(own + ROWS, count); ++r)
        work.log_sums[(work.first + r) * work.heads] = log_sum_of(peak[r], total[r]);
}

// The only query of a sentence.
__device__ __forceinline__ void attend_alone(const Work& work) {
    __shared__ REAL scores[CHUNK], weights[CHUNK];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int high = work.high(1);
    REAL peak = -infinity(), total = 0;
    for (int start = 0; start < high; start += CHUNK) {
        const int count = min(CHUNK, high - start);
        dots_of_rows(work.k.from(start), count, work.q.first, [&](int n, REAL dot) {
            scores[n] = work.sees(0, start + n) ? dot * work.scale : -infinity();
        });
        __syncthreads();
        const REAL before = peak;
        for (int n = lane; n < count; n += WARP) peak = Max::combine(peak, scores[n]);
        peak = warp_reduce<Max>(peak);
        const REAL shift = shift_of(peak), factor = exp(before - shift);
        REAL sum = 0;  // every warp makes it for itself, and 32 of the weights for all
        for (int n = lane; n < count; n += WARP) {
            const REAL p = exp(scores[n] - shift);
            if (n / WARP == warp) weights[n] = p;
            sum += p;
        }
        total = total * factor + warp_reduce<Add>(sum);
        __syncthreads();
        const Input rows = work.v.from(start);
        sums_of_columns<REAL>(
            count, rows.width, [&](int n, int c) { return weights[n] * rows.row(n)[c]; },
            [&](int c, REAL value) {
                REAL* place = work.y.first + c;
                if (start) value += *place * factor;
                if (start + CHUNK >= high && total != 0) value /= total;
                *place = value;
            });
    }
    if (high <= 0) clear(work.y, 0, 1, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0 && work.log_sums) work.log_sums[0] = log_sum_of(peak, total);
}

// out = Σ_j p_ij v_j and log Σ_j exp(score_ij), unless log_sums is NULL.
extern "C" __global__ void __launch_bounds__(512, 2)
    dot_attention(const REAL* queries, const REAL* keys, const REAL* values, REAL* out,
        REAL* log_sums, const long long* tiles, const long long* query_offsets,
        const long long* key_offsets, const REAL* scales, const long long* masks,
        const bool* visible, int sentences, int heads, int key_width, int value_width) {
    __shared__ Work work;
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, key_width, value_width};
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums);
        work.y = tables.head_of(out, work.query, value_width);
    }
    __syncthreads();
    if (work.queries == 1) attend_alone(work);
    else attend(work);
}

// Backward ---------------------------------------------------------------------------------------
//
// p = exp(score - log_sum), dp_ij = dout_i · v_j, mean_i = Σ_j p_ij dp_ij and
// ds = scale * p * (dp - mean).

__device__ __forceinline__ REAL slope(REAL p, REAL dp, REAL mean, REAL scale) {
    return scale * (p * (dp - mean));
}

// means, and dq = ds k unless it is not wanted, of up to 32 queries of a sentence with several.
__device__ __forceinline__ void slopes_of_queries(const Work& work) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.queries - work.first), row = work.first + own;
    const int low = work.low(work.first), high = work.high(work.first + count);
    __shared__ Four weights[WARPS][SIDE], slopes[WARPS][SIDE];
    Four &p = weights[own / ROWS][lane], &dp = slopes[own / ROWS][lane], mean = {};
    for (int pass = 0; pass < (work.dq.first ? 2 : 1); ++pass) {
        for (int start = low; start < high; start += SIDE) {
            const int seen = min(SIDE, high - start);
            if (pass == 0 || high - low > SIDE) {  // the only tile is still there
                p = products(work.q.from(work.first), count, work.k.from(start), seen);
                dp = products(work.dy.from(work.first), count, work.v.from(start), seen);
#pragma unroll 1
                for (int r = 0; r < ROWS; ++r) {
                    const int i = row + r;
                    p.of[r] = work.sees(i, start + lane)
                                  ? exp(p.of[r] * work.scale - work.log_sums[i * work.heads])
                                  : (REAL)0;
                }
            }
            if (own >= count) continue;  // the same for the whole warp
            if (pass == 0) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) mean.of[r] += p.of[r] * dp.of[r];
                continue;
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                p.of[r] = slope(p.of[r], dp.of[r], mean.of[r], work.scale);
            weighted_sums(weights[own / ROWS], work.k.from(start), seen,
                [&](int c, Four sum) { put(work.dq, row, count - own, c, sum, start > low); });
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (pass == 0) mean.of[r] = warp_reduce<Add>(mean.of[r]);
    }
    if (low >= high) clear(work.dq, row, min(row + ROWS, work.queries), lane, WARP);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        if (lane == 0 && own + r < count) work.means[(row + r) * work.heads] = mean.of[r];
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
                put(work.dk, start + n, slope(p[n], dp[n], mean, work.scale), work.q.first);
            }
            sums_of_columns<REAL>(
                count, work.dq.first ? rows.width : 0,
                [&](int n, int c) { return slope(p[n], dp[n], mean, work.scale) * rows.row(n)[c]; },
                [&](int c, REAL sum) {
                    REAL* place = work.dq.first + c;
                    *place = start ? *place + sum : sum;
                });
        }
        if (pass == 0) mean = warp_reduce<Add>(mean);  // every warp makes it for itself
    }
    if (high <= 0) clear(work.dq, 0, 1, threadIdx.x, blockDim.x);
    if (!accumulate) {
        clear(work.dv, max(0, high), work.keys, threadIdx.x, blockDim.x);
        clear(work.dk, max(0, high), work.keys, threadIdx.x, blockDim.x);
    }
}

// dv = pᵀ dout and dk = dsᵀ q, where wanted, of up to 32 keys of a sentence with several queries,
// or with none.
__device__ __forceinline__ void slopes_of_keys(const Work& work, bool accumulate) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.keys - work.first), row = work.first + own;
    const int low = max(0, work.first - work.mask.right);
    const int high = min(work.queries, work.first + count + work.mask.left);
    __shared__ Four weights[WARPS][SIDE];
    Four& p = weights[own / ROWS][lane];
    for (int start = low; start < high; start += SIDE) {
        const int seen = min(SIDE, high - start), i = start + lane;
        auto add = [&](Output to, Input rows) {
            if (own >= count) return;  // the same for the whole warp
            weighted_sums(weights[own / ROWS], rows, seen, [&](int c, Four sum) {
                put(to, row, count - own, c, sum, accumulate || start > low);
            });
        };
        p = products(work.k.from(work.first), count, work.q.from(start), seen);
#pragma unroll 1
        for (int r = 0; r < ROWS; ++r)
            p.of[r] = work.sees(i, row + r)
                          ? exp(p.of[r] * work.scale - work.log_sums[i * work.heads])
                          : (REAL)0;
        if (work.dv.first) add(work.dv, work.dy.from(start));
        if (!work.dk.first) continue;
        const Four dp = products(work.v.from(work.first), count, work.dy.from(start), seen);
        const REAL mean = lane < seen ? work.means[i * work.heads] : (REAL)0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) p.of[r] = slope(p.of[r], dp.of[r], mean, work.scale);
        add(work.dk, work.q.from(start));
    }
    if (low >= high && !accumulate) {
        clear(work.dv, row, min(row + ROWS, work.keys), lane, WARP);
        clear(work.dk, row, min(row + ROWS, work.keys), lane, WARP);
    }
}

// Gradients of queries; where a sentence has one query, of its keys and values too. Those that are
// NULL are not wanted; dkeys and dvalues are added to if `accumulate`, and may then be the same.
// Overwrites means.
extern "C" __global__ void __launch_bounds__(512, 2)
    dot_attention_backward(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* dout, REAL* means, REAL* dqueries, REAL* dkeys, REAL* dvalues,
        bool accumulate, const long long* tiles, const long long* query_offsets,
        const long long* key_offsets, const REAL* scales, const long long* masks,
        const bool* visible, int sentences, int heads, int key_width, int value_width) {
    __shared__ Work work;
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, key_width, value_width};
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums);
        tables.find_gradients(work, dout, means, dkeys, dvalues);
        work.dq = tables.head_of(dqueries, work.query, key_width);
    }
    __syncthreads();
    if (work.queries == 1) slopes_alone(work, accumulate);
    else slopes_of_queries(work);
}

// Gradients of keys and values of the sentences that have tiles; tiles are 32 keys here.
extern "C" __global__ void __launch_bounds__(512, 2)
    dot_attention_backward_keys(const REAL* queries, const REAL* keys, const REAL* values,
        REAL* log_sums, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues, bool accumulate,
        const long long* tiles, const long long* query_offsets, const long long* key_offsets,
        const REAL* scales, const long long* masks, const bool* visible, int sentences, int heads,
        int key_width, int value_width) {
    __shared__ Work work;
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, key_width, value_width};
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums);
        tables.find_gradients(work, dout, means, dkeys, dvalues);
    }
    __syncthreads();
    slopes_of_keys(work, accumulate);
}
