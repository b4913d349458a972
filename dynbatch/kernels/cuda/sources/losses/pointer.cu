// Cross-entropy of choices among a sentence's own rows: the CUDA versions of
// kernels/losses/pointer.py.
//
// queries (N_q, width), keys (N_k, width), ids and weights (N_q,). probabilities and slopes have a
// number for each pair: a sentence's (T_q, T_k) after the other. Tables: `query_offsets` and
// `key_offsets`, first query and key of each sentence and the end; `pairs`, its first pair.

// A query's sentence, and what is its own.
struct Choice {
    long long key, pair;  // first of its keys and pairs
    int sentence, keys;

    __device__ __forceinline__ Choice(const long long* query_offsets, const long long* key_offsets,
        const long long* pairs, int sentences) {
        sentence = find_segment(query_offsets, 1, 0, sentences, blockIdx.x);
        key = key_offsets[sentence];
        keys = (int)(key_offsets[sentence + 1] - key);
        pair = pairs[sentence] + (blockIdx.x - query_offsets[sentence]) * keys;
    }
};

// losses_i = weights_i (log Σ_j exp(q_i · k_j) - q_i · k_ids_i), and the probabilities.
//
// Block (256) does a query; grid N_q.
extern "C" __global__ void __launch_bounds__(256)
    pointer_loss(const REAL* queries, const REAL* keys, REAL* probabilities, REAL* losses,
        const int* ids, const REAL* weights, const long long* query_offsets,
        const long long* key_offsets, const long long* pairs, int sentences, int width) {
    __shared__ REAL partial[WARP], chosen;
    const Choice choice(query_offsets, key_offsets, pairs, sentences);
    const Rows<const REAL> rows = {keys + choice.key * width, width, width};
    REAL* p = probabilities + choice.pair;
    const int id = ids[blockIdx.x];
    dots_of_rows(
        rows, choice.keys, queries + (long long)blockIdx.x * width, [&](int n, REAL score) {
            p[n] = score;
            if (n == id) chosen = score;
        });
    __syncthreads();
    REAL peak = -infinity(), total = 0;
    for (int n = threadIdx.x; n < choice.keys; n += blockDim.x) peak = Max::combine(peak, p[n]);
    peak = block_reduce<Max>(peak, partial);
    if (peak == -infinity()) peak = 0;
    for (int n = threadIdx.x; n < choice.keys; n += blockDim.x) total += p[n] = exp(p[n] - peak);
    total = block_reduce<Add>(total, partial);
    for (int n = threadIdx.x; n < choice.keys; n += blockDim.x) p[n] /= total;
    if (threadIdx.x == 0) {  // of an ignored query 0, whatever its scores are
        const REAL weight = weights[blockIdx.x];
        losses[blockIdx.x] = choice.keys && weight != 0 ? (log(total) + peak - chosen) * weight : 0;
    }
}

// slopes_ij = dy_k weights_i (p_ij - [ids_i = j]) and, unless NULL, dq_i = Σ_j slopes_ij k_j.
//
// Block (256) does a query; grid N_q.
extern "C" __global__ void __launch_bounds__(256)
    pointer_loss_backward(const REAL* keys, const REAL* probabilities, const REAL* dy, REAL* slopes,
        REAL* dqueries, const int* ids, const REAL* weights, const long long* query_offsets,
        const long long* key_offsets, const long long* pairs, int sentences, int width) {
    const Choice choice(query_offsets, key_offsets, pairs, sentences);
    const REAL scale = dy[choice.sentence] * weights[blockIdx.x];
    const int id = ids[blockIdx.x];
    const Rows<const REAL> rows = {keys + choice.key * width, width, width};
    const REAL* p = probabilities + choice.pair;
    const bool counts = weights[blockIdx.x] != 0;
    auto slope = [&](int n) { return counts ? scale * p[n] - (n == id ? scale : (REAL)0) : 0; };
    for (int n = threadIdx.x; n < choice.keys; n += blockDim.x) slopes[choice.pair + n] = slope(n);
    if (!dqueries) return;
    sums_of_columns<REAL>(
        choice.keys, width, [&](int n, int c) { return slope(n) * rows.row(n)[c]; },
        [&](int c, REAL sum) { dqueries[(long long)blockIdx.x * width + c] = sum; });
}

// dk_j = Σ_i slopes_ij q_i. A thread has a column of a key.
//
// Block (columns, keys): 256 threads. Grid (keys, columns) in blocks.
extern "C" __global__ void pointer_loss_backward_keys(const REAL* queries, const REAL* slopes,
    REAL* dkeys, const long long* query_offsets, const long long* key_offsets,
    const long long* pairs, int sentences, int rows, int width) {
    const int c = blockIdx.y * blockDim.x + threadIdx.x;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows || c >= width) return;
    const int k = find_segment(key_offsets, 1, 0, sentences, row);
    const long long first = query_offsets[k], pair = pairs[k] + row - key_offsets[k];
    const int count = (int)(query_offsets[k + 1] - first);
    const int stride = (int)(key_offsets[k + 1] - key_offsets[k]);  // pairs from query to query
    REAL sum = 0;
    for (int i = 0; i < count; ++i)
        sum += slopes[pair + (long long)i * stride] * queries[(first + i) * width + c];
    dkeys[row * width + c] = sum;
}
