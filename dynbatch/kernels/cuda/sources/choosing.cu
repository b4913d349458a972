// Rows of logits become tokens: the CUDA versions of kernels/choosing. A block does a row, and the
// order of its sums depends on the number of classes only. Block (256), grid (rows).

constexpr int THREADS = 256;

template <int SIZE> struct BitsOf {
    typedef unsigned type;
};
template <> struct BitsOf<8> {
    typedef unsigned long long type;
};
typedef BitsOf<sizeof(REAL)>::type Bits;
constexpr Bits SIGN = (Bits)1 << (8 * sizeof(Bits) - 1);

union Number {
    REAL value;
    Bits bits;
};

// Bits in the order of the numbers, and the number of such bits.
__device__ __forceinline__ Bits ordered(REAL x) {
    Number number;
    number.value = x;
    return number.bits & SIGN ? ~number.bits : number.bits | SIGN;
}
__device__ __forceinline__ REAL number_of(Bits bits) {
    Number number;
    number.bits = bits & SIGN ? bits & ~SIGN : ~bits;
    return number.value;
}

// How many x are `bound` or more, or the weights exp(x - peak) of these.
template <bool COUNTED>
__device__ __forceinline__ REAL weight_from(
    const REAL* x, int classes, REAL peak, REAL bound, REAL* partial) {
    REAL sum = 0;
    for (int i = threadIdx.x; i < classes; i += THREADS)
        if (x[i] >= bound) sum += COUNTED ? (REAL)1 : exp(x[i] - peak);
    return block_reduce<Add>(sum, partial);
}

// The largest number from which on there is that much; -infinity where there is not.
template <bool COUNTED>
__device__ __forceinline__ REAL bound_of(
    const REAL* x, int classes, REAL peak, REAL wanted, REAL* partial) {
    Bits low = ordered(-infinity()), high = ordered(peak);
    while (low < high) {
        const Bits middle = high - (high - low) / 2;
        if (weight_from<COUNTED>(x, classes, peak, number_of(middle), partial) >= wanted)
            low = middle;
        else high = middle - 1;
    }
    return number_of(low);
}

// The least probable x, the last of equal ones first, become -infinity: together 1 - top_p.
__device__ __forceinline__ void cut_improbable(
    REAL* x, int classes, REAL peak, REAL top_p, REAL* partial) {
    const REAL goal = top_p * weight_from<false>(x, classes, peak, -infinity(), partial);
    const REAL bound = bound_of<false>(x, classes, peak, goal, partial);
    const REAL next = bound < peak ? number_of(ordered(bound) + 1) : infinity();
    REAL before = weight_from<false>(x, classes, peak, next, partial);
    const int equal = (int)(weight_from<true>(x, classes, peak, bound, partial) -
                            weight_from<true>(x, classes, peak, next, partial));
    int kept = 0;
    for (const REAL weight = exp(bound - peak); kept < equal && before < goal; ++kept)
        before += weight;
    for (int i = threadIdx.x; i < classes; i += THREADS)
        if (x[i] < bound) x[i] = -infinity();
    if (kept >= equal) return;  // the whole block
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < classes; ++i)
        if (x[i] == bound && kept-- <= 0) x[i] = -infinity();
    __syncthreads();
}

// Temperature, top-k, top-p and min-p of each row, by four numbers a row; -infinity is cut off.
extern "C" __global__ void cut_rows(REAL* logits, const double* cuts, int classes) {
    __shared__ REAL partial[WARP];
    REAL* x = logits + (long long)blockIdx.x * classes;
    const double* cut = cuts + 4LL * blockIdx.x;
    const REAL temperature = (REAL)cut[0], top_p = (REAL)cut[2], min_p = (REAL)cut[3];
    REAL peak = -infinity();
    for (int i = threadIdx.x; i < classes; i += THREADS) {
        if (temperature != 1) x[i] /= temperature;
        peak = Max::combine(peak, x[i]);
    }
    peak = block_reduce<Max>(peak, partial);
    if (0 < cut[1] && cut[1] < classes) {
        const REAL bound = bound_of<true>(x, classes, peak, (REAL)cut[1], partial);
        for (int i = threadIdx.x; i < classes; i += THREADS)
            if (x[i] < bound) x[i] = -infinity();
    }
    if (top_p < 1) cut_improbable(x, classes, peak, top_p, partial);
    for (int i = threadIdx.x; min_p > 0 && i < classes; i += THREADS)
        if (exp(x[i] - peak) < min_p) x[i] = -infinity();
}

// The first of the largest x that come after one, in decreasing order, equal ones by place. All
// threads must call, and meet at a barrier before they call again.
__device__ __forceinline__ int largest_after(const REAL* x, int classes, REAL value, int place) {
    __shared__ REAL values[THREADS];
    __shared__ int places[THREADS];
    REAL best = -infinity();
    int at = classes;
    for (int i = threadIdx.x; i < classes; i += THREADS) {
        if (!(x[i] < value || (x[i] == value && i > place))) continue;
        if (at == classes || x[i] > best) best = x[i], at = i;
    }
    values[threadIdx.x] = best;
    places[threadIdx.x] = at;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        const REAL other = values[threadIdx.x + half];
        const int its = places[threadIdx.x + half];
        if (its == classes) continue;
        if (at == classes || other > best || (other == best && its < at)) best = other, at = its;
        values[threadIdx.x] = best;
        places[threadIdx.x] = at;
    }
    __syncthreads();
    return places[0];
}

// Where the `count` largest of each row lie, the largest first, equal ones by place.
// A place has so many words.
extern "C" __global__ void rank_rows(
    const REAL* logits, int* out, int classes, int count, int words) {
    const REAL* x = logits + (long long)blockIdx.x * classes;
    REAL value = infinity();
    int place = -1;
    for (int rank = 0; rank < count; ++rank) {
        const int found = largest_after(x, classes, value, place);
        __syncthreads();  // all have read it
        if (found < classes) value = x[found], place = found;
        if (threadIdx.x > 0) continue;
        int* to = out + ((long long)blockIdx.x * count + rank) * words;
        to[0] = place < 0 ? 0 : place;
        if (words > 1) to[1] = 0;
    }
}

// out[n, k] = logits[n, places[n, k]].
extern "C" __global__ void take_from_rows(
    const REAL* logits, const int* places, REAL* out, int classes, int count, int words) {
    const long long row = blockIdx.x;
    for (int k = threadIdx.x; k < count; k += THREADS)
        out[row * count + k] = logits[row * classes + places[(row * count + k) * words]];
}

// A class of each row: the first whose weights, added up, exceed a number in [0, 1) of them all, or
// the most probable one where the number is below 0.
extern "C" __global__ void draw_rows(
    const REAL* logits, const double* uniforms, int* out, int classes) {
    __shared__ double sums[THREADS];
    const REAL* x = logits + (long long)blockIdx.x * classes;
    const double uniform = uniforms[blockIdx.x];
    const int largest = largest_after(x, classes, infinity(), -1), place = largest % classes;
    if (uniform < 0) {  // the same for the whole block
        if (threadIdx.x == 0) out[blockIdx.x] = place;
        return;
    }
    const REAL peak = x[place];
    const int each = (classes + THREADS - 1) / THREADS, first = threadIdx.x * each;
    double sum = 0;
    for (int i = first; i < min(first + each, classes); ++i) sum += exp(x[i] - peak);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    double total = 0, before = 0;
    for (int k = 0; k < THREADS; ++k) total += sums[k];
    const double goal = uniform * total;
    int part = 0;
    double all = 0;
    for (int k = 0; k < THREADS; ++k) {
        if (sums[k] > 0) {
            part = k, before = all;
            if (all + sums[k] > goal) break;
        }
        all += sums[k];
    }
    int found = place;
    for (int i = part * each; i < min(part * each + each, classes) && before <= goal; ++i) {
        const REAL weight = exp(x[i] - peak);
        if (weight > 0) found = i;
        before += weight;
    }
    out[blockIdx.x] = found;
}

__device__ __forceinline__ bool has(const int* sorted, int count, int wanted) {
    return count && sorted[find_segment(sorted, 1, 0, count, wanted)] == wanted;
}

// Penalties, bans and limits of rows: `RowEdits` of kernels/choosing/edits.py.
extern "C" __global__ void edit_rows(REAL* logits, const int* rows, const int* penalized,
    const int* penalized_offsets, const REAL* factors, const REAL* amounts, const int* banned,
    const int* banned_offsets, const int* allowed, const int* allowed_offsets, const int* limits,
    int classes) {
    const int k = blockIdx.x, limit = limits[k];
    REAL* x = logits + (long long)rows[k] * classes;
    for (int n = penalized_offsets[k] + threadIdx.x; n < penalized_offsets[k + 1]; n += THREADS) {
        const REAL value = x[penalized[n]], factor = factors[n];
        x[penalized[n]] = (value > 0 ? value / factor : value * factor) - amounts[n];
    }
    __syncthreads();
    for (int n = banned_offsets[k] + threadIdx.x; n < banned_offsets[k + 1]; n += THREADS)
        x[banned[n]] = -infinity();
    if (!limit) return;  // the whole block
    __syncthreads();
    const int* own = allowed + allowed_offsets[k];
    const int count = allowed_offsets[k + 1] - allowed_offsets[k];
    for (int i = threadIdx.x; i < classes; i += THREADS) {
        if (!has(own, count, i)) x[i] = -infinity();
        else if (limit == 2) x[i] = 0;
    }
}
