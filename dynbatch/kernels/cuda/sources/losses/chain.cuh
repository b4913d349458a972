// Sums over the labels before one, and over the last one: of CRFs and semi-Markov CRFs.

// log Σ_i exp(a_i + column_i), column_i = column[i * tags]; -inf where all are.
__device__ __forceinline__ REAL log_sum_exp(const REAL* a, const REAL* column, int tags) {
    REAL peak = -infinity(), sum = 0;
#pragma unroll AT_ONCE
    for (int i = 0; i < tags; ++i) peak = Max::combine(peak, a[i] + column[(long long)i * tags]);
    if (peak == -infinity()) return peak;
#pragma unroll(AT_ONCE / 2)
    for (int i = 0; i < tags; ++i) sum += exp(a[i] + column[(long long)i * tags] - peak);
    return peak + log(sum);
}

// Probabilities of the last tag, exp(a_j + end_j) / Σ, into `last`, and log Σ_j exp(a_j + end_j).
__device__ __forceinline__ REAL finish(
    const REAL* a, const REAL* end, REAL* last, int tags, REAL* partial) {
    REAL peak = -infinity(), sum = 0;
    for (int j = threadIdx.x; j < tags; j += blockDim.x) peak = Max::combine(peak, a[j] + end[j]);
    peak = block_reduce<Max>(peak, partial);
    if (peak == -infinity()) peak = 0;
    for (int j = threadIdx.x; j < tags; j += blockDim.x) sum += last[j] = exp(a[j] + end[j] - peak);
    sum = block_reduce<Add>(sum, partial);
    for (int j = threadIdx.x; j < tags; j += blockDim.x) last[j] /= sum;
    return peak + log(sum);
}
