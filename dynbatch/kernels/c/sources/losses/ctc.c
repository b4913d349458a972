// Connectionist temporal classification, a sentence at a time: see `kernels/losses/ctc.py`, whose
// formulas and names these are. A row of states is blank_0 … blank_U, label_1 … label_U.
#include "losses/paths.h"

// Log of the sum of exponentials, lane by lane; -INFINITY where all terms are.
INLINE vector log_sum(vector a, vector b, vector c) {
    vector peak = larger(a, larger(b, c));
    mask is_none = peak == -INFINITY;
    vector base = choose(is_none, splat(0), peak);
    vector sum = exp_of(a - base) + exp_of(b - base) + exp_of(c - base);
    return choose(is_none & (sum == sum), peak, base + log_of(sum));
}

// log(e^blank_U + e^label_U): of the paths that end here.
static REAL last_of(const REAL* a, ptrdiff_t U) {
    return U ? log_sum(splat(a[U]), splat(a[2 * U]), splat(-INFINITY))[0] : a[0];
}

// One frame x after the states `before`.
static void step(ptrdiff_t U, const REAL* before, const REAL* x, ptrdiff_t blank,
    const int64_t* ids, const REAL* bars, REAL* a) {
    const REAL* labels = before + U + 1;
    REAL* next = a + U + 1;
    for (ptrdiff_t u = 0; u < U; u++) next[u] = x[ids[u]];
    a[0] = before[0] + x[blank];
    EACH_VECTOR(u, part, U) {
        vector label = get(labels + u, part), none = splat(-INFINITY);
        put(a + 1 + u, log_sum(get(before + 1 + u, part), label, none) + x[blank], part);
        // Before the first label there is none: its bar is -INFINITY.
        vector skipped = get(labels + u - 1, part) + get(bars + u, part);
        put(next + u, log_sum(label, get(before + u, part), skipped) + get(next + u, part), part);
    }
}

EXPORT void ctc(ptrdiff_t first, ptrdiff_t last, ptrdiff_t V, ptrdiff_t blank, int zero_infinity,
    const int64_t* offsets, const int64_t* label_offsets, const int64_t* begins, const REAL* x,
    const int64_t* ids, const REAL* bars, REAL* states, REAL* shifts, REAL* out) {
    for (ptrdiff_t k = first; k < last; k++) {
        ptrdiff_t m = label_offsets[k], U = label_offsets[k + 1] - m, width = 2 * U + 1;
        REAL* a = states + begins[k];
        double total = 0;
        for (ptrdiff_t r = offsets[k]; r < offsets[k + 1]; r++, a += width) {
            if (r == offsets[k]) {
                for (ptrdiff_t s = 0; s < width; s++) a[s] = -INFINITY;
                a[0] = x[r * V + blank];
                if (U) a[U + 1] = x[r * V + ids[m]];
            } else {
                step(U, a - width, x + r * V, blank, ids + m, bars + m, a);
            }
            vector peaks = splat(-INFINITY);
            EACH_VECTOR(s, part, width)
            peaks = larger(fill(get(a + s, part), part, -INFINITY), peaks);
            REAL shift = largest_lane(peaks);
            shifts[r] = isfinite(shift) ? shift : 0;
            EACH_VECTOR(s, part, width) put(a + s, get(a + s, part) - shifts[r], part);
            total += shifts[r];
        }
        int is_empty = offsets[k] == offsets[k + 1];
        double end = !is_empty ? last_of(a - width, U) : U ? -INFINITY : 0;
        out[k] = (REAL)(zero_infinity && end == -INFINITY ? 0 : -(total + end));
    }
}

// The probabilities of a frame's states a, from p of the next one's.
static void step_back(
    ptrdiff_t U, const REAL* p, const REAL* a, const REAL* sums, const REAL* bars, REAL* before) {
    ptrdiff_t width = 2 * U + 1, label = U + 1;
    EACH_VECTOR(s, part, width)
    put(before + s, edge(get(p + s, part), get(a + s, part), get(sums + s, part)), part);
    EACH_VECTOR(u, part, U) {
        vector on = edge(get(p + label + u, part), get(a + u, part), get(sums + label + u, part));
        put(before + u, get(before + u, part) + on, part);
        REAL* row = before + label + u;
        on = edge(get(p + 1 + u, part), get(a + label + u, part), get(sums + 1 + u, part));
        put(row, get(row, part) + on, part);
    }
    EACH_VECTOR(u, part, U - 1) {
        ptrdiff_t next = label + u + 1;
        vector skipped = get(a + label + u, part) + get(bars + u + 1, part);
        vector on = edge(get(p + next, part), skipped, get(sums + next, part));
        put(before + label + u, get(before + label + u, part) + on, part);
    }
    vector all = {0};
    EACH_VECTOR(s, part, width) all += get(before + s, part);
    REAL total = sum_lanes(all);
    EACH_VECTOR(s, part, width) put(before + s, get(before + s, part) / total, part);
}

EXPORT void ctc_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t V, ptrdiff_t blank,
    int zero_infinity, const int64_t* offsets, const int64_t* label_offsets, const int64_t* begins,
    const REAL* x, const int64_t* ids, const REAL* bars, const REAL* states, const REAL* shifts,
    const REAL* dy, REAL* scratch, REAL* dx) {
    for (ptrdiff_t k = first; k < last; k++) {
        ptrdiff_t m = label_offsets[k], U = label_offsets[k + 1] - m, width = 2 * U + 1;
        ptrdiff_t begin = offsets[k], r = offsets[k + 1] - 1;
        if (r < begin) continue;
        const REAL* a = states + begins[k] + (r - begin) * width;
        REAL total = last_of(a, U), *p = scratch + 3 * (2 * m + k), *before = p + width;
        REAL* sums = before + width;
        if (!(total > -INFINITY)) {
            REAL slope = zero_infinity && total == -INFINITY ? 0 : (REAL)NAN;
            for (ptrdiff_t i = begin * V; i < (r + 1) * V; i++) dx[i] = slope;
            continue;
        }
        memset(p, 0, (size_t)width * sizeof(REAL));
        p[U] = exp_of(splat(a[U] - total))[0];
        p[2 * U] = exp_of(splat(a[2 * U] - total))[0];
        for (;; r--, a -= width) {
            REAL* slopes = dx + r * V;
            const REAL* scores = x + r * V;
            vector blanks = {0};
            EACH_VECTOR(u, part, U + 1) blanks += get(p + u, part);
            memset(slopes, 0, (size_t)V * sizeof(REAL));
            for (ptrdiff_t u = 0; u < U; u++) slopes[ids[m + u]] -= dy[k] * p[U + 1 + u];
            slopes[blank] = -dy[k] * sum_lanes(blanks);
            if (r == begin) break;
            EACH_VECTOR(u, part, U + 1)
            put(sums + u, get(a + u, part) + shifts[r] - scores[blank], part);
            for (ptrdiff_t u = 0; u < U; u++)
                sums[U + 1 + u] = a[U + 1 + u] + shifts[r] - scores[ids[m + u]];
            step_back(U, p, a - width, sums, bars + m, before);
            REAL* after = p;
            p = before, before = after;
        }
    }
}
