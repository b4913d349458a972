// Additive attention of every sentence's queries over its own keys: CUDA versions of
// kernels/attention/additive.py and of the additive kernels of kernels/attention/single_query.py.
//
// queries (N_q, width), in rows of `query_stride`, and dqueries likewise; keys (N_k, width), values
// (N_k, value_width), vector (width,), out and dout (N_q, value_width). weights and slopes have a
// number for each pair: a sentence's (T_q, T_k) after the other. Tables:
//
//     query_offsets  first query of each sentence; NULL: every sentence has one query
//     key_offsets    first key of each sentence, and N_k
//     pairs          first pair of each sentence
//     masks, visible  what its queries see: `Mask` in attention.cuh
//
// A block does a query: its warps share the keys, and its threads the columns. Block 512, grid N_q.

// A query's sentence, and what is its own.
struct Query {
    long long key, pair;  // first of its keys and pairs
    int sentence, number, queries, keys;

    __device__ __forceinline__ Query(const long long* query_offsets, const long long* key_offsets,
        const long long* pairs, int sentences) {
        sentence = blockIdx.x, number = 0, queries = 1;
        if (query_offsets) {
            sentence = find_segment(query_offsets, 1, 0, sentences, blockIdx.x);
            number = (int)(blockIdx.x - query_offsets[sentence]);
            queries = (int)(query_offsets[sentence + 1] - query_offsets[sentence]);
        }
        key = key_offsets[sentence];
        keys = (int)(key_offsets[sentence + 1] - key);
        pair = pairs[sentence] + (long long)number * keys;
    }
};

// out = Σ_j w_ij v_j,  w_ij = softmax_j(vector · tanh(q_i + k_j)).
extern "C" __global__ void __launch_bounds__(512, 2)
    additive_attention(const REAL* queries, const REAL* keys, const REAL* values,
        const REAL* vector, REAL* out, REAL* weights, const long long* query_offsets,
        const long long* key_offsets, const long long* pairs, const long long* masks,
        const bool* visible, int sentences, int width, int value_width, int query_stride) {
    __shared__ REAL partial[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const Query query(query_offsets, key_offsets, pairs, sentences);
    const Mask mask = mask_of(masks, visible, query.sentence);
    const REAL* q = queries + (long long)blockIdx.x * query_stride;
    const Rows<const REAL> k = {keys + query.key * width, width, width};
    const Rows<const REAL> v = {values + query.key * value_width, value_width, value_width};
    REAL *w = weights + query.pair, *y = out + (long long)blockIdx.x * value_width;
    for (int n = warp; n < query.keys; n += warps) {
        const REAL* row = k.row(n);
        REAL score = 0;
        for (int c = lane; c < width; c += WARP) score += vector[c] * tanh(q[c] + row[c]);
        score = warp_reduce<Add>(score);
        if (lane == 0) w[n] = mask.sees(query.number, n) ? score : -infinity();
    }
    __syncthreads();
    REAL peak = -infinity(), total = 0;
    for (int n = threadIdx.x; n < query.keys; n += blockDim.x) peak = Max::combine(peak, w[n]);
    peak = block_reduce<Max>(peak, partial);
    if (peak == -infinity()) peak = 0;  // a query that sees no key has weights of 0
    for (int n = threadIdx.x; n < query.keys; n += blockDim.x) total += w[n] = exp(w[n] - peak);
    total = block_reduce<Add>(total, partial);
    for (int n = threadIdx.x; n < query.keys && total != 0; n += blockDim.x) w[n] /= total;
    __syncthreads();
    sums_of_columns<REAL>(
        query.keys, value_width, [&](int n, int c) { return w[n] * v.row(n)[c]; },
        [&](int c, REAL sum) { y[c] = sum; });
}

// What is summed over the keys for each column of a query: its own gradient and the vector's.
struct Slopes {
    REAL query, vector;

    __device__ __forceinline__ Slopes& operator+=(Slopes other) {
        query += other.query;
        vector += other.vector;
        return *this;
    }
};

// With u = tanh(q_i + k_j), dw_ij = dout_i · v_j and ds_ij = w_ij (dw_ij - Σ_j w_ij dw_ij): slopes
// = ds, dq_i = vector ⊙ Σ_j ds_ij (1 - u²) and row i of dvectors = Σ_j ds_ij u. Of a sentence with
// one query also dk_j = vector ⊙ ds_j (1 - u²) and dv_j = w_j dout. Gradients that are NULL are not
// wanted; dkeys and dvalues are added to if `accumulate`, and may then be the same; so is dvectors
// if `add_vectors`.
extern "C" __global__ void __launch_bounds__(512, 2)
    additive_attention_backward(const REAL* queries, const REAL* keys, const REAL* values,
        const REAL* vector, const REAL* weights, const REAL* dout, REAL* slopes, REAL* dvectors,
        REAL* dqueries, REAL* dkeys, REAL* dvalues, bool accumulate, const long long* query_offsets,
        const long long* key_offsets, const long long* pairs, int sentences, int width,
        int value_width, int query_stride, int dquery_stride, bool add_vectors) {
    __shared__ REAL partial[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const Query query(query_offsets, key_offsets, pairs, sentences);
    const bool alone = query.queries == 1;
    const REAL* q = queries + (long long)blockIdx.x * query_stride;
    const REAL* dy = dout + (long long)blockIdx.x * value_width;
    const Rows<const REAL> k = {keys + query.key * width, width, width};
    const Rows<const REAL> v = {values + query.key * value_width, value_width, value_width};
    const REAL* w = weights + query.pair;
    REAL* ds = slopes + query.pair;
    dots_of_rows(v, query.keys, dy, [&](int n, REAL dot) { ds[n] = dot; });
    __syncthreads();
    REAL mean = 0;
    for (int n = threadIdx.x; n < query.keys; n += blockDim.x) mean += w[n] * ds[n];
    mean = block_reduce<Add>(mean, partial);
    for (int n = threadIdx.x; n < query.keys; n += blockDim.x) ds[n] = w[n] * (ds[n] - mean);
    for (int n = warp; alone && dvalues && n < query.keys; n += warps) {
        REAL* row = dvalues + (query.key + n) * value_width;
        for (int c = lane; c < value_width; c += WARP)
            row[c] = accumulate ? row[c] + w[n] * dy[c] : w[n] * dy[c];
    }
    __syncthreads();
    sums_of_columns<Slopes>(
        query.keys, width,
        [&](int n, int c) {
            const REAL u = tanh(q[c] + k.row(n)[c]), slope = ds[n], inner = slope * (1 - u * u);
            if (alone && dkeys) {
                REAL* place = dkeys + (query.key + n) * width + c;
                *place = accumulate ? *place + inner * vector[c] : inner * vector[c];
            }
            return Slopes{inner, slope * u};
        },
        [&](int c, Slopes sum) {
            if (dqueries)
                dqueries[(long long)blockIdx.x * dquery_stride + c] = sum.query * vector[c];
            REAL* place = dvectors + (long long)blockIdx.x * width + c;
            *place = add_vectors ? *place + sum.vector : sum.vector;
        });
}

// dv_j = Σ_i w_ij dout_i and dk_j = vector ⊙ Σ_i ds_ij (1 - u²) of the sentences that have other
// than one query. A thread has a column of a key.
//
// Block (columns, keys): 256 threads. Grid (keys, columns) in blocks.
extern "C" __global__ void additive_attention_backward_keys(const REAL* queries, const REAL* keys,
    const REAL* vector, const REAL* weights, const REAL* dout, const REAL* slopes, REAL* dkeys,
    REAL* dvalues, bool accumulate, const long long* query_offsets, const long long* key_offsets,
    const long long* pairs, int sentences, int rows, int width, int value_width, int query_stride) {
    const int c = blockIdx.y * blockDim.x + threadIdx.x;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const int k = find_segment(key_offsets, 1, 0, sentences, row);
    const long long first = query_offsets[k], pair = pairs[k] + row - key_offsets[k];
    const int count = (int)(query_offsets[k + 1] - first);
    const int stride = (int)(key_offsets[k + 1] - key_offsets[k]);  // pairs from query to query
    if (count == 1) return;
    if (dvalues && c < value_width) {
        REAL sum = 0, *place = dvalues + row * value_width + c;
        for (int i = 0; i < count; ++i)
            sum += weights[pair + (long long)i * stride] * dout[(first + i) * value_width + c];
        *place = accumulate ? *place + sum : sum;
    }
    if (dkeys && c < width) {
        const REAL key = keys[row * width + c];
        REAL sum = 0, *place = dkeys + row * width + c;
        for (int i = 0; i < count; ++i) {
            const REAL u = tanh(queries[(first + i) * query_stride + c] + key);
            sum += slopes[pair + (long long)i * stride] * (1 - u * u);
        }
        *place = accumulate ? *place + sum * vector[c] : sum * vector[c];
    }
}
