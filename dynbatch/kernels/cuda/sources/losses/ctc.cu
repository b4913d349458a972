// Connectionist temporal classification: the CUDA versions of kernels/losses/ctc.py, whose formulas
// and names these are. A block does a sentence.
//
// x (N, V), shifts (N,), ids of all labels; offsets and label_offsets: first row and label of each
// sentence, and their number; begins: first element of its states, whose rows are blank_0 … blank_U,
// label_1 … label_U.

__device__ __forceinline__ REAL log_sum(REAL a, REAL b, REAL c) {
    const REAL two = b > a ? b : a, peak = c > two ? c : two;
    if (peak == -infinity()) return a + b + c;  // NaN stays
    return peak + log(exp(a - peak) + exp(b - peak) + exp(c - peak));
}

// log(e^blank_U + e^label_U): of the paths that end here.
__device__ __forceinline__ REAL last_of(const REAL* a, int U) {
    return U ? log_sum(a[U], a[2 * U], -infinity()) : a[0];
}

// One sentence's labels and frames.
struct Spelling {
    long long first;
    int frames, U, width;
    const int* ids;

    __device__ __forceinline__ Spelling(
        const long long* offsets, const long long* label_offsets, const int* all_ids)
        : first(offsets[blockIdx.x]), ids(all_ids + label_offsets[blockIdx.x]) {
        frames = (int)(offsets[blockIdx.x + 1] - first);
        U = (int)(label_offsets[blockIdx.x + 1] - label_offsets[blockIdx.x]);
        width = 2 * U + 1;
    }
    // 0, or -infinity where a blank must stand before label u + 1.
    __device__ __forceinline__ REAL bar(int u) const {
        return u && ids[u] != ids[u - 1] ? (REAL)0 : -infinity();
    }
};

// The loss. A thread sums over the states before one: itself, of a label the blank before it, and the
// label before, past which there is no way from a label like it.
extern "C" __global__ void ctc(const REAL* x, const int* all_ids, const long long* offsets,
    const long long* label_offsets, const long long* begins, REAL* states, REAL* shifts, REAL* out,
    int V, int blank, bool zero_infinity) {
    __shared__ REAL partial[WARP];
    const Spelling spelling(offsets, label_offsets, all_ids);
    const int U = spelling.U, width = spelling.width;
    REAL* a = states + begins[blockIdx.x];
    double total = 0;
    for (int t = 0; t < spelling.frames; ++t, a += width) {
        const REAL* scores = x + (spelling.first + t) * V;
        const REAL* before = a - width;
        REAL peak = -infinity();
        for (int s = threadIdx.x; s < width; s += blockDim.x) {
            const bool is_label = s > U;
            const int u = is_label ? s - U - 1 : s;
            REAL sum = u ? -infinity() : (REAL)0;
            if (t) {
                REAL label = u ? before[U + u] : -infinity();
                if (is_label) label += spelling.bar(u);
                sum = log_sum(before[s], is_label ? before[u] : -infinity(), label);
            }
            a[s] = sum + scores[is_label ? spelling.ids[u] : blank];
            peak = a[s] > peak ? a[s] : peak;
        }
        peak = block_reduce<Max>(peak, partial);
        if (fabs(peak) == infinity()) peak = 0;
        for (int s = threadIdx.x; s < width; s += blockDim.x) a[s] -= peak;
        if (threadIdx.x == 0) shifts[spelling.first + t] = peak;
        total += peak;
        __syncthreads();
    }
    if (threadIdx.x) return;
    REAL end = U ? -infinity() : (REAL)0;
    if (spelling.frames) end = last_of(a - width, U);
    out[blockIdx.x] = zero_infinity && end == -infinity() ? (REAL)0 : (REAL) - (total + end);
}

// p exp(a - sum), 0 where p is.
__device__ __forceinline__ REAL edge(REAL p, REAL a, REAL sum) {
    return p == 0 ? (REAL)0 : p * exp(a - sum);
}

// dx. A thread sums over the states after one; and over the labels of one kind, from the first on,
// where following is the next one of its kind, or -1. scratch: two rows of states for each sentence.
extern "C" __global__ void ctc_backward(const REAL* x, const int* all_ids, const int* is_first,
    const int* following, const long long* offsets, const long long* label_offsets,
    const long long* begins, const REAL* states, const REAL* shifts, const REAL* dy, REAL* scratch,
    REAL* dx, int V, int blank, bool zero_infinity) {
    __shared__ REAL partial[WARP];
    const Spelling spelling(offsets, label_offsets, all_ids);
    const int U = spelling.U, width = spelling.width, label = U + 1;
    const long long m = label_offsets[blockIdx.x];
    if (!spelling.frames) return;
    const REAL* a = states + begins[blockIdx.x] + (long long)(spelling.frames - 1) * width;
    const REAL total = last_of(a, U), scale = dy[blockIdx.x];
    const bool has_path = total > -infinity();
    const REAL rest = has_path || (zero_infinity && total == -infinity()) ? (REAL)0 : total - total;
    for (long long i = threadIdx.x; i < (long long)spelling.frames * V; i += blockDim.x)
        dx[spelling.first * V + i] = rest;
    if (!has_path) return;
    REAL *p = scratch + 2 * (2 * m + blockIdx.x), *before = p + width;
    for (int s = threadIdx.x; s < width; s += blockDim.x)
        p[s] = s == U || s == 2 * U ? exp(a[s] - total) : (REAL)0;
    __syncthreads();
    for (int t = spelling.frames - 1;; --t, a -= width) {
        const REAL *scores = x + (spelling.first + t) * V, *earlier = a - width;
        REAL *slopes = dx + (spelling.first + t) * V, blanks = 0, all = 0;
        for (int u = threadIdx.x; u <= U; u += blockDim.x) {
            blanks += p[u];
            if (u == U || !is_first[m + u]) continue;
            REAL sum = 0;
            for (int v = u; v >= 0; v = following[m + v]) sum += p[label + v];
            slopes[spelling.ids[u]] = -scale * sum;
        }
        blanks = block_reduce<Add>(blanks, partial);
        if (threadIdx.x == 0) slopes[blank] = -scale * blanks;
        if (t == 0) return;
        const REAL shift = shifts[spelling.first + t];
        auto blank_sum = [&](int u) { return a[u] + shift - scores[blank]; };
        auto label_sum = [&](int u) { return a[label + u] + shift - scores[spelling.ids[u]]; };
        for (int u = threadIdx.x; u <= U; u += blockDim.x) {
            before[u] = edge(p[u], earlier[u], blank_sum(u));
            if (u < U) {
                before[u] += edge(p[label + u], earlier[u], label_sum(u));
                const REAL here = earlier[label + u];
                REAL sum = edge(p[label + u], here, label_sum(u));
                sum += edge(p[u + 1], here, blank_sum(u + 1));
                if (u + 1 < U)
                    sum += edge(p[label + u + 1], here + spelling.bar(u + 1), label_sum(u + 1));
                before[label + u] = sum;
                all += sum;
            }
            all += before[u];
        }
        all = block_reduce<Add>(all, partial);
        for (int u = threadIdx.x; u <= U; u += blockDim.x) {
            before[u] /= all;
            if (u < U) before[label + u] /= all;
        }
        __syncthreads();
        REAL* after = p;
        p = before, before = after;
    }
}
