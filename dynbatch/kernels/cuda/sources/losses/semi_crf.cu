// Semi-Markov CRF: the CUDA versions of kernels/losses/semi_crf.py, whose formulas and names these
// are.
//
// x (N, longest, tags), entries and states (N, tags), shifts (N,), transitions (tags, tags) from row
// to column, start and end (tags,); ids (N,): column of the segment that ends at a row, or -1;
// before (N,): label of the one before it, or -1; offsets: first row of each sentence, and N.
//
// All but semi_crf_transitions do a sentence with a block of whole warps, whose threads do labels.

#include "chain.cuh"

// One sentence's segments.
struct Segmented {
    const REAL *x, *shifts;
    REAL* entries;
    long long first;
    int count, longest, tags;

    __device__ __forceinline__ Segmented(const REAL* all_x, REAL* all_entries,
        const REAL* all_shifts, const long long* offsets, int longest, int tags)
        : first(offsets[blockIdx.x]), longest(longest), tags(tags) {
        count = (int)(offsets[blockIdx.x + 1] - first);
        x = all_x + first * longest * tags;
        entries = all_entries + first * tags;
        shifts = all_shifts + first;
    }
    __device__ __forceinline__ int most(int t) const { return t < longest ? t + 1 : longest; }
    __device__ __forceinline__ REAL& entry(int t, int j) const {
        return entries[(long long)t * tags + j];
    }
    // What a segment of length l began before, and one token less did not.
    __device__ __forceinline__ REAL shift(int t, int l) const {
        return l > 1 ? shifts[t - l + 1] : (REAL)0;
    }
    // The score of all that ends at token t with a segment of length l and label j.
    __device__ __forceinline__ REAL choice(int t, int l, int j, REAL back) const {
        return x[((long long)t * longest + l - 1) * tags + j] + entry(t - l + 1, j) - back;
    }
};

// The loss. A thread sums over the labels before one, and over its lengths.
extern "C" __global__ void semi_crf(const REAL* x, const REAL* transitions, const REAL* start,
    const REAL* end, const int* ids, const int* before, const long long* offsets, REAL* entries,
    REAL* states, REAL* shifts, REAL* out, int longest, int tags) {
    extern __shared__ REAL rows[];
    __shared__ REAL partial[WARP];
    const Segmented s(x, entries, shifts, offsets, longest, tags);
    double loss = 0;
    const REAL* a = states;
    for (int t = 0; t < s.count; ++t) {
        REAL peak = -infinity();
        REAL* next = states + (s.first + t) * tags;
        for (int j = threadIdx.x; j < tags; j += blockDim.x) {
            s.entry(t, j) = t ? log_sum_exp(a, transitions + j, tags) : start[j];
            REAL most = -infinity(), sum = 0, back = 0;
#pragma unroll AT_ONCE
            for (int l = 1; l <= s.most(t); ++l) {
                const REAL score = s.choice(t, l, j, back += s.shift(t, l));
                most = score > most ? score : most;
            }
            if (most == -infinity()) most = 0;
            back = 0;
#pragma unroll(AT_ONCE / 2)
            for (int l = 1; l <= s.most(t); ++l)
                sum += exp(s.choice(t, l, j, back += s.shift(t, l)) - most);
            next[j] = most + log(sum);
            peak = next[j] > peak ? next[j] : peak;
        }
        peak = block_reduce<Max>(peak, partial);
        if (fabs(peak) == infinity()) peak = 0;
        for (int j = threadIdx.x; j < tags; j += blockDim.x) next[j] -= peak;
        if (threadIdx.x == 0) {
            const long long r = s.first + t;
            shifts[r] = peak;
            loss += peak;
            if (ids[r] >= 0) {
                const int label = ids[r] % tags;
                loss -= x[r * longest * tags + ids[r]];
                loss -=
                    before[r] < 0 ? start[label] : transitions[(long long)before[r] * tags + label];
            }
        }
        a = next;
        __syncthreads();
    }
    if (s.count) {
        const REAL total = finish(a, end, rows, tags, partial);
        loss += total - end[ids[s.first + s.count - 1] % tags];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = (REAL)loss;
}

// p exp(a - sum), 0 where p is.
__device__ __forceinline__ REAL edge(REAL p, REAL a, REAL sum) {
    return p == 0 ? (REAL)0 : p * exp(a - sum);
}

// dx, the probabilities `starting` of labels that start at a row, and the gradients of a sentence's
// first and last scores. A thread sums over the labels after one; its label's segments are its own.
extern "C" __global__ void semi_crf_backward(const REAL* x, const REAL* transitions,
    const REAL* end, const int* ids, const int* first_labels, const long long* offsets,
    REAL* entries, const REAL* states, const REAL* shifts, const REAL* dy, REAL* ending,
    REAL* starting, REAL* dx, REAL* starts, REAL* ends, int longest, int tags) {
    __shared__ REAL partial[WARP];
    const Segmented s(x, entries, shifts, offsets, longest, tags);
    const REAL scale = dy[blockIdx.x];
    const long long out = (long long)blockIdx.x * tags;
    for (long long i = threadIdx.x; i < (long long)s.count * tags; i += blockDim.x)
        starting[s.first * tags + i] = 0;
    for (int j = threadIdx.x; j < tags && !s.count; j += blockDim.x)
        starts[out + j] = ends[out + j] = 0;
    for (int t = s.count - 1; t >= 0; --t) {
        const long long r = s.first + t;
        const REAL *a = states + r * tags, shift = shifts[r];
        REAL *p = ending + r * tags, *later = starting + (r + 1) * tags;
        const bool is_last = t == s.count - 1;
        if (is_last) finish(a, end, p, tags, partial);  // a barrier: `starting` is 0
        for (int i = threadIdx.x; i < tags; i += blockDim.x) {
            REAL sum = 0;
            const REAL* row = transitions + (long long)i * tags;
            if (is_last) sum = scale * p[i];
            else
#pragma unroll(AT_ONCE / 2)
                for (int j = 0; j < tags; ++j)
                    sum += edge(later[j], a[i] + row[j], s.entry(t + 1, j));
            p[i] = sum;
            if (is_last) ends[out + i] = sum - (ids[r] % tags == i ? scale : (REAL)0);
            REAL back = 0;
#pragma unroll(AT_ONCE / 2)
            for (int l = 1; l <= longest; ++l) {
                const long long at = (r * longest + l - 1) * tags + i;
                REAL segment = 0;
                if (l <= t + 1) {
                    back += s.shift(t, l);
                    segment = edge(sum, s.choice(t, l, i, back), a[i] + shift);
                    starting[(r - l + 1) * tags + i] += segment;
                }
                dx[at] = segment - (ids[r] == (l - 1) * tags + i ? scale : (REAL)0);
            }
            if (t == 0)
                starts[out + i] =
                    starting[r * tags + i] - (first_labels[blockIdx.x] == i ? scale : (REAL)0);
        }
        __syncthreads();
    }
}

// parts[c, i, j] = Σ over the rows r of chunk c that have one before them in their sentence of the
// probability that label j starts at r after label i, less dy_k where it does. A thread a pair.
//
// Block (32, 8): labels after, labels before. Grid: the same in blocks, and chunks of `chunk` rows.
extern "C" __global__ void semi_crf_transitions(const REAL* transitions, const int* ids,
    const int* before, const long long* offsets, const REAL* entries, const REAL* states,
    const REAL* dy, const REAL* starting, REAL* parts, int sentences, int chunk, int tags) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= tags || j >= tags) return;
    const long long begin = (long long)blockIdx.z * chunk, total = offsets[sentences];
    const long long end = begin + chunk < total ? begin + chunk : total;
    const REAL score = transitions[(long long)i * tags + j];
    int k = find_segment(offsets, 1, 0, sentences, begin);
    REAL sum = 0;
    for (long long r = begin; r < end; ++r) {
        while (r >= offsets[k + 1]) ++k;
        if (r != offsets[k])
            sum += edge(
                starting[r * tags + j], states[(r - 1) * tags + i] + score, entries[r * tags + j]);
        if (ids[r] >= 0 && before[r] == i && ids[r] % tags == j) sum -= dy[k];
    }
    parts[((long long)blockIdx.z * tags + i) * tags + j] = sum;
}

// out_r = the column of the segment that ends at row r in the best segmentation, or -1; with the
// three parts of the scratch. A thread finds the first of the best labels before one, and lengths.
extern "C" __global__ void semi_viterbi(const REAL* x, const REAL* transitions, const REAL* start,
    const REAL* end, const long long* offsets, REAL* entries, REAL* lengths, REAL* labels,
    REAL* out, int longest, int tags) {
    extern __shared__ REAL rows[];
    const Segmented s(x, entries, entries, offsets, longest, tags);
    REAL *a = rows, *next = rows + tags;
    for (int t = 0; t < s.count; ++t) {
        for (int j = threadIdx.x; j < tags; j += blockDim.x) {
            REAL best = t ? a[0] + transitions[j] : start[j];
            int from = 0;
#pragma unroll AT_ONCE
            for (int i = 1; t && i < tags; ++i) {
                const REAL score = a[i] + transitions[(long long)i * tags + j];
                if (score > best) best = score, from = i;
            }
            s.entry(t, j) = best;
            labels[(s.first + t) * tags + j] = (REAL)from;
            best = s.choice(t, 1, j, 0), from = 0;
#pragma unroll AT_ONCE
            for (int l = 2; l <= s.most(t); ++l) {
                const REAL score = s.choice(t, l, j, 0);
                if (score > best) best = score, from = l - 1;
            }
            lengths[(s.first + t) * tags + j] = (REAL)from;
            next[j] = best;
        }
        REAL* before = a;
        a = next, next = before;
        __syncthreads();
    }
    if (threadIdx.x || !s.count) return;
    int label = 0;
    for (int j = 1; j < tags; ++j)
        if (a[j] + end[j] > a[label] + end[label]) label = j;
    for (long long r = s.first; r < s.first + s.count; ++r) out[r] = -1;
    for (long long r = s.first + s.count - 1; r >= s.first; --r) {
        const int length = (int)lengths[r * tags + label];
        out[r] = (REAL)(length * tags + label);
        r -= length;
        label = (int)labels[r * tags + label];
    }
}
