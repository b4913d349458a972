// Semi-Markov conditional random field, a sentence at a time: see `kernels/losses/semi_crf.py`, whose
// names these are. x has L rows of K for each token, one for each length.
#include "losses/paths.h"

// One sentence up to a row: the segments that end there, of label j, and what came before them.
typedef struct {
    ptrdiff_t K, L, begin, row;
    const REAL *x, *entries, *shifts;
} ends;

static ptrdiff_t most_of(const ends* e) { return least(e->L, e->row - e->begin + 1); }

// What a segment of length l began before, and one token less did not.
static REAL shift_of(const ends* e, ptrdiff_t l) { return l > 1 ? e->shifts[e->row - l + 1] : 0; }

// The scores of a vector of labels whose last segment has length l, `back` being the shifts between.
INLINE vector choice(const ends* e, ptrdiff_t l, ptrdiff_t j, ptrdiff_t part, REAL back) {
    vector score = get(e->x + (e->row * e->L + l - 1) * e->K + j, part);
    return score + get(e->entries + (e->row - l + 1) * e->K + j, part) - back;
}

// The log sum of `choice` over lengths, for all labels.
static void sum_lengths(const ends* e, REAL* a) {
    ptrdiff_t most = most_of(e);
    EACH_VECTOR(j, part, e->K) {
        vector peak = splat(-INFINITY), sum = {0};
        REAL back = 0;
        for (ptrdiff_t l = 1; l <= most; l++)
            peak = larger(choice(e, l, j, part, back += shift_of(e, l)), peak);
        mask is_none = peak == -INFINITY;
        peak = choose(is_none, splat(0), peak), back = 0;
        for (ptrdiff_t l = 1; l <= most; l++)
            sum += exp_of(choice(e, l, j, part, back += shift_of(e, l)) - peak);
        put(a + j, log_of(sum) + peak, part);
    }
}

EXPORT void semi_crf(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t L,
    const int64_t* offsets, const REAL* x, const REAL* transitions, const REAL* into,
    const REAL* start, const REAL* end, const int64_t* ids, const int64_t* before, REAL* entries,
    REAL* states, REAL* shifts, REAL* out) {
    for (ptrdiff_t s = first; s < last; s++) {
        double loss = 0;
        for (ptrdiff_t r = offsets[s]; r < offsets[s + 1]; r++) {
            REAL *b = entries + r * K, *a = states + r * K;
            if (r == offsets[s]) memcpy(b, start, (size_t)K * sizeof(REAL));
            else
                for (ptrdiff_t j = 0; j < K; j++) b[j] = log_sum_exp(K, a - K, into + j * K);
            ends e = {K, L, offsets[s], r, x, entries, shifts};
            sum_lengths(&e, a);
            REAL shift = largest(K, a);
            shifts[r] = isfinite(shift) ? shift : 0;
            EACH_VECTOR(j, part, K) put(a + j, get(a + j, part) - shifts[r], part);
            loss += shifts[r];
            if (ids[r] < 0) continue;
            ptrdiff_t label = ids[r] % K;
            loss -= x[r * L * K + ids[r]];
            loss -= before[r] < 0 ? start[label] : transitions[before[r] * K + label];
        }
        ptrdiff_t r = offsets[s + 1] - 1;
        if (r >= offsets[s]) loss += log_sum_exp(K, states + r * K, end) - end[ids[r] % K];
        out[s] = (REAL)loss;
    }
}

EXPORT void walk_segments_back(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t L,
    const int64_t* offsets, const REAL* x, const REAL* transitions, const REAL* end,
    const REAL* entries, const REAL* states, const REAL* shifts, const REAL* dy, REAL* ending,
    REAL* starting, REAL* dx) {
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t begin = offsets[s], count = offsets[s + 1] - begin;
        memset(starting + begin * K, 0, (size_t)(count * K) * sizeof(REAL));
        memset(dx + begin * L * K, 0, (size_t)(count * L * K) * sizeof(REAL));
        for (ptrdiff_t r = begin + count - 1; r >= begin; r--) {
            REAL* p = ending + r * K;
            const REAL* a = states + r * K;
            if (r == begin + count - 1) {
                add_rows(K, a, end, 0, p);
                REAL total = softmax_row(K, p), scale = total == -INFINITY ? (REAL)NAN : dy[s];
                EACH_VECTOR(j, part, K) put(p + j, scale * get(p + j, part), part);
            } else {
                for (ptrdiff_t i = 0; i < K; i++) {
                    vector sum = {0};
                    EACH_VECTOR(j, part, K) {
                        vector pair = a[i] + get(transitions + i * K + j, part);
                        vector next = get(starting + (r + 1) * K + j, part);
                        sum += edge(next, pair, get(entries + (r + 1) * K + j, part));
                    }
                    p[i] = sum_lanes(sum);
                }
            }
            ends e = {K, L, begin, r, x, entries, shifts};
            REAL back = 0;
            for (ptrdiff_t l = 1; l <= most_of(&e); l++) {
                back += shift_of(&e, l);
                EACH_VECTOR(j, part, K) {
                    vector sum = get(a + j, part) + shifts[r];
                    vector segment = edge(get(p + j, part), choice(&e, l, j, part, back), sum);
                    REAL* entry = starting + (r - l + 1) * K + j;
                    put(dx + (r * L + l - 1) * K + j, segment, part);
                    put(entry, get(entry, part) + segment, part);
                }
            }
        }
    }
}

// Rows first to last of `out`, over all sentences in their order.
EXPORT void pair_sums(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t sentences,
    const int64_t* offsets, const REAL* transitions, const REAL* entries, const REAL* states,
    const REAL* starting, REAL* out) {
    for (ptrdiff_t i = first; i < last; i++) EACH_VECTOR(j, part, K) {
            vector sum = {0}, score = get(transitions + i * K + j, part);
            for (ptrdiff_t s = 0; s < sentences; s++)
                for (ptrdiff_t r = offsets[s] + 1; r < offsets[s + 1]; r++)
                    sum += edge(get(starting + r * K + j, part), states[(r - 1) * K + i] + score,
                        get(entries + r * K + j, part));
            put(out + i * K + j, sum, part);
        }
}

// `semi_viterbi`, with the three parts of its scratch.
EXPORT void semi_viterbi(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t L,
    const int64_t* offsets, const REAL* x, const REAL* transitions, const REAL* start,
    const REAL* end, REAL* entries, REAL* lengths, REAL* labels, REAL* out) {
    REAL a[MOST_TAGS], next[MOST_TAGS];
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t begin = offsets[s], r = begin;
        for (; r < offsets[s + 1]; r++) {
            out[r] = -1;
            EACH_VECTOR(j, part, K) {
                vector best = get(start + j, part), from = splat(0);
                if (r > begin) best = a[0] + get(transitions + j, part);
                for (ptrdiff_t i = 1; r > begin && i < K; i++) {
                    vector other = a[i] + get(transitions + i * K + j, part);
                    mask is_better = other > best;
                    best = choose(is_better, other, best);
                    from = choose(is_better, splat((REAL)i), from);
                }
                put(entries + r * K + j, best, part);
                put(labels + r * K + j, from, part);
                ends e = {K, L, begin, r, x, entries, 0};
                best = choice(&e, 1, j, part, 0), from = splat(0);
                for (ptrdiff_t l = 2; l <= most_of(&e); l++) {
                    vector other = choice(&e, l, j, part, 0);
                    mask is_better = other > best;
                    best = choose(is_better, other, best);
                    from = choose(is_better, splat((REAL)(l - 1)), from);
                }
                put(lengths + r * K + j, from, part);
                put(next + j, best, part);
            }
            memcpy(a, next, (size_t)K * sizeof(REAL));
        }
        if (r == begin) continue;
        add_rows(K, a, end, 0, next);
        ptrdiff_t label = best_of(K, next);
        for (r--; r >= begin; r--) {
            ptrdiff_t length = (ptrdiff_t)lengths[r * K + label];
            out[r] = (REAL)(length * K + label);
            r -= length;
            label = (ptrdiff_t)labels[r * K + label];
        }
    }
}
