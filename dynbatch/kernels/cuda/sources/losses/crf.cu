// Linear-chain CRF: the CUDA versions of kernels/losses/crf.py, whose formulas and names these are.
//
// x and log_sums (N, tags), shifts (N,), ids (N,), transitions (tags, tags) from row to column,
// start and end (tags,); offsets: first row of each sentence, and N. A state is a_t = log_sums_t +
// x_t - shift_t.
//
// All but crf_transitions do a sentence with a block: grid sentences, block a number of whole warps
// that depends on `tags`, and dynamic shared memory for two rows of tags.

#include "chain.cuh"

// One sentence's rows.
struct Sentence {
    const REAL* x;
    REAL* log_sums;
    long long first;
    int count, tags;

    __device__ __forceinline__ Sentence(
        const REAL* all_x, REAL* all_log_sums, const long long* offsets, int tags)
        : first(offsets[blockIdx.x]), tags(tags) {
        count = (int)(offsets[blockIdx.x + 1] - first);
        x = all_x + first * tags;
        log_sums = all_log_sums + first * tags;
    }
    __device__ __forceinline__ REAL score(int t, int j) const { return x[(long long)t * tags + j]; }
    __device__ __forceinline__ REAL& log_sum(int t, int j) const {
        return log_sums[(long long)t * tags + j];
    }
};

// The loss. A thread sums over the tags before one.
extern "C" __global__ void crf(const REAL* x, const REAL* transitions, const REAL* start,
    const REAL* end, const int* ids, const long long* offsets, REAL* log_sums, REAL* shifts,
    REAL* out, int tags) {
    extern __shared__ REAL rows[];
    __shared__ REAL partial[WARP];
    const Sentence sentence(x, log_sums, offsets, tags);
    const int* own = ids + sentence.first;
    REAL *a = rows, *next = rows + tags, loss = 0;
    for (int t = 0; t < sentence.count; ++t) {
        REAL peak = -infinity();
        for (int j = threadIdx.x; j < tags; j += blockDim.x) {
            const REAL sum = t ? log_sum_exp(a, transitions + j, tags) : start[j];
            sentence.log_sum(t, j) = sum;
            next[j] = sum + sentence.score(t, j);
            peak = Max::combine(peak, next[j]);
        }
        peak = block_reduce<Max>(peak, partial);
        if (peak == -infinity()) peak = 0;
        for (int j = threadIdx.x; j < tags; j += blockDim.x) next[j] -= peak;
        if (threadIdx.x == 0) {
            shifts[sentence.first + t] = peak;
            loss += peak - sentence.score(t, own[t]) -
                    (t ? transitions[(long long)own[t - 1] * tags + own[t]] : start[own[0]]);
        }
        REAL* before = a;
        a = next, next = before;
        __syncthreads();
    }
    if (sentence.count) {
        const REAL total = finish(a, end, next, tags, partial);
        loss += total - end[own[sentence.count - 1]];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = loss;
}

// dx. From the last token to the first: tag i stands before j with the probability exp(a_i +
// transitions_ij - log_sums_j), so that row t of probabilities gives row t - 1. A warp sums over
// the tags after one.
extern "C" __global__ void crf_backward(const REAL* x, const REAL* transitions, const REAL* end,
    const int* ids, const long long* offsets, REAL* log_sums, const REAL* shifts, const REAL* dy,
    REAL* dx, int tags) {
    extern __shared__ REAL rows[];
    __shared__ REAL partial[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const Sentence sentence(x, log_sums, offsets, tags);
    const int* own = ids + sentence.first;
    const REAL scale = dy[blockIdx.x];
    REAL *p = rows, *before = rows + tags;
    for (int t = sentence.count - 1; t >= 0; --t) {
        const REAL shift = shifts[sentence.first + t];
        auto state = [&](int j) { return sentence.log_sum(t, j) + sentence.score(t, j) - shift; };
        if (t == sentence.count - 1) {
            for (int j = threadIdx.x; j < tags; j += blockDim.x) before[j] = state(j);
            finish(before, end, p, tags, partial);
            for (int j = threadIdx.x; j < tags; j += blockDim.x) p[j] *= scale;
        } else {
            for (int i = warp; i < tags; i += warps) {
                const REAL* row = transitions + (long long)i * tags;
                const REAL a = state(i);
                REAL sum = 0;
                for (int j = lane; j < tags; j += WARP)
                    if (p[j] != 0) sum += p[j] * exp(a + row[j] - sentence.log_sum(t + 1, j));
                sum = warp_reduce<Add>(sum);
                if (lane == 0) before[i] = sum;
            }
            REAL* after = p;
            p = before, before = after;
        }
        __syncthreads();
        for (int j = threadIdx.x; j < tags; j += blockDim.x)
            dx[(sentence.first + t) * tags + j] = p[j] - (own[t] == j ? scale : (REAL)0);
    }
}

// parts[c, i, j] = Σ over the rows r of chunk c that have one before them in their sentence of
// dy_k (p_r,ij - [ids_r-1, ids_r = i, j]), from the dx of `crf_backward`. A thread a pair of tags.
//
// Block (32, 8): tags after, tags before. Grid: the same in blocks, and chunks of `chunk` rows.
extern "C" __global__ void crf_transitions(const REAL* x, const REAL* transitions, const int* ids,
    const long long* offsets, const REAL* log_sums, const REAL* shifts, const REAL* dy,
    const REAL* dx, REAL* parts, int sentences, int chunk, int tags) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= tags || j >= tags) return;
    const long long begin = (long long)blockIdx.z * chunk, total = offsets[sentences];
    const long long end = begin + chunk < total ? begin + chunk : total;
    const REAL score = transitions[(long long)i * tags + j];
    int k = find_segment(offsets, 1, 0, sentences, begin);
    REAL sum = 0;
    for (long long r = begin; r < end; ++r) {
        while (r >= offsets[k + 1]) ++k;
        if (r == offsets[k]) continue;
        const long long here = r * tags + j, there = (r - 1) * tags + i;
        const bool is_own = ids[r] == j;
        const REAL p = dx[here] + (is_own ? dy[k] : (REAL)0);
        const REAL a = log_sums[there] + x[there] - shifts[r - 1];
        if (p != 0) sum += p * exp(a + score - log_sums[here]);
        if (is_own && ids[r - 1] == i) sum -= dy[k];
    }
    parts[((long long)blockIdx.z * tags + i) * tags + j] = sum;
}

// out_r = the tag of row r in the best sequence of its sentence. origin (N, tags) remembers the
// best tag before each. A thread finds the first of the best tags before one.
extern "C" __global__ void viterbi(const REAL* x, const REAL* transitions, const REAL* start,
    const REAL* end, const long long* offsets, int* origin, REAL* out, int tags) {
    extern __shared__ REAL rows[];
    const long long first = offsets[blockIdx.x];
    const int count = (int)(offsets[blockIdx.x + 1] - first);
    REAL *a = rows, *next = rows + tags;
    for (int t = 0; t < count; ++t) {
        for (int j = threadIdx.x; j < tags; j += blockDim.x) {
            REAL best = start[j];
            if (t) {
                int from = 0;
                best = a[0] + transitions[j];
                for (int i = 1; i < tags; ++i) {
                    const REAL found = a[i] + transitions[(long long)i * tags + j];
                    if (found > best) best = found, from = i;
                }
                origin[(first + t) * tags + j] = from;
            }
            next[j] = best + x[(first + t) * tags + j];
        }
        REAL* before = a;
        a = next, next = before;
        __syncthreads();
    }
    if (threadIdx.x || !count) return;
    int tag = 0;
    for (int j = 1; j < tags; ++j)
        if (a[j] + end[j] > a[tag] + end[tag]) tag = j;
    for (int t = count - 1; t >= 0; --t) {
        out[first + t] = (REAL)tag;
        if (t) tag = origin[(first + t) * tags + tag];
    }
}
