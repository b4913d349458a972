// Linear-chain conditional random field, a sentence at a time: see `kernels/losses/crf.py`.
#include "losses/paths.h"

// `crf` of the sentences first to last, with factors, peaks and limit (its least) as `LogSums` has them;
// `into` is the transposed matrix of transitions.
EXPORT void crf(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, const int64_t* offsets, const REAL* x,
    const REAL* transitions, const REAL* into, const REAL* start, const REAL* end,
    const REAL* factors, const REAL* peaks, double limit, const int64_t* ids, REAL* log_sums,
    REAL* shifts, REAL* out) {
    REAL a[MOST_TAGS], e[MOST_TAGS];
    for (ptrdiff_t s = first; s < last; s++) {
        double loss = 0;
        for (ptrdiff_t r = offsets[s]; r < offsets[s + 1]; r++) {
            REAL* sums = log_sums + r * K;
            REAL chosen = x[r * K + ids[r]];
            if (r == offsets[s]) {
                memcpy(sums, start, (size_t)K * sizeof(REAL));
                chosen += start[ids[r]];
            } else {
                EACH_VECTOR(i, part, K) put(e + i, exp_of(get(a + i, part)), part);
                sum_rows(K, K, e, factors, sums);
                for (ptrdiff_t j = 0; j < K; j++) e[j] = sums[j];
                EACH_VECTOR(j, part, K)
                put(sums + j, log_of(get(sums + j, part)) + get(peaks + j, part), part);
                for (ptrdiff_t j = 0; j < K; j++)
                    if (e[j] < (REAL)limit) sums[j] = log_sum_exp(K, a, into + j * K);
                chosen += transitions[ids[r - 1] * K + ids[r]];
            }
            add_rows(K, sums, x + r * K, 0, a);
            REAL shift = largest(K, a);
            shifts[r] = shift == -INFINITY ? 0 : shift;
            EACH_VECTOR(j, part, K) put(a + j, get(a + j, part) - shifts[r], part);
            loss += shifts[r] - chosen;
        }
        ptrdiff_t r = offsets[s + 1] - 1;
        if (r >= offsets[s]) loss += log_sum_exp(K, a, end) - end[ids[r]];
        out[s] = (REAL)loss;
    }
}

// The steps of `crf_backward`, from each sentence's last token to its first: see `walk_back`.
EXPORT void walk_back(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, const int64_t* offsets,
    const REAL* x, const REAL* into, const REAL* end, const REAL* factors, const REAL* log_sums,
    const REAL* shifts, const REAL* dy, const REAL* before, REAL* slopes, const uint8_t* is_small,
    REAL* dx, REAL* exact) {
    REAL a[MOST_TAGS], row[MOST_TAGS];
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t r = offsets[s + 1] - 1;
        if (r < offsets[s]) continue;
        REAL* p = dx + r * K;
        add_rows(K, log_sums + r * K, x + r * K, shifts[r], a);
        add_rows(K, a, end, 0, p);
        REAL total = softmax_row(K, p), scale = total == -INFINITY ? (REAL)NAN : dy[s];
        EACH_VECTOR(j, part, K) put(p + j, scale * get(p + j, part), part);
        for (; r > offsets[s]; r--, p -= K) {
            REAL *slope = slopes + r * K, *earlier = p - K;
            EACH_VECTOR(j, part, K) put(slope + j, get(slope + j, part) * get(p + j, part), part);
            dot_rows(K, K, factors, slope, 1, earlier);
            const REAL* weights = before + (r - 1) * K;
            EACH_VECTOR(i, part, K)
            put(earlier + i, get(earlier + i, part) * get(weights + i, part), part);
            for (ptrdiff_t j = 0; j < K; j++) {
                if (!is_small[r * K + j] || p[j] == 0) continue;
                add_rows(K, log_sums + (r - 1) * K, x + (r - 1) * K, shifts[r - 1], a);
                add_rows(K, a, into + j * K, log_sums[r * K + j], row);
                EACH_VECTOR(i, part, K) {
                    vector pair = p[j] * exp_of(get(row + i, part));
                    put(earlier + i, get(earlier + i, part) + pair, part);
                    put(row + i, pair, part);
                }
                for (ptrdiff_t i = 0; i < K; i++) exact[i * K + j] += row[i];
            }
        }
    }
}

// `viterbi`; origin_nj is the tag before tag j of row n.
EXPORT void viterbi(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, const int64_t* offsets,
    const REAL* x, const REAL* transitions, const REAL* start, const REAL* end, REAL* origin,
    REAL* out) {
    REAL a[MOST_TAGS], next[MOST_TAGS];
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t begin = offsets[s], r = begin;
        for (; r < offsets[s + 1]; r++) {
            EACH_VECTOR(j, part, K) {
                vector best = get(start + j, part), from = splat(0);
                if (r > begin) {
                    best = a[0] + get(transitions + j, part);
                    for (ptrdiff_t i = 1; i < K; i++) {
                        vector other = a[i] + get(transitions + i * K + j, part);
                        mask is_better = other > best;
                        best = choose(is_better, other, best);
                        from = choose(is_better, splat((REAL)i), from);
                    }
                }
                put(next + j, best + get(x + r * K + j, part), part);
                put(origin + r * K + j, from, part);
            }
            memcpy(a, next, (size_t)K * sizeof(REAL));
        }
        if (r == begin) continue;
        add_rows(K, a, end, 0, next);
        out[r - 1] = (REAL)best_of(K, next);
        for (r--; r > begin; r--) out[r - 1] = origin[r * K + (ptrdiff_t)out[r]];
    }
}
