// The losses over all paths of a sentence: CRF, semi-Markov CRF and CTC.
#include "attention/rows.h"

#define MOST_TAGS 1024

// a = row + x - shift
static void add_rows(ptrdiff_t K, const REAL* row, const REAL* x, REAL shift, REAL* a) {
    EACH_VECTOR(j, part, K) put(a + j, get(row + j, part) + get(x + j, part) - shift, part);
}

static REAL largest(ptrdiff_t K, const REAL* row) {
    vector peaks = splat(-INFINITY);
    EACH_VECTOR(j, part, K) peaks = larger(fill(get(row + j, part), part, -INFINITY), peaks);
    return largest_lane(peaks);
}

// log of the sum of exp(a_i + b_i)
static REAL log_sum_exp(ptrdiff_t K, const REAL* a, const REAL* b) {
    REAL row[MOST_TAGS];
    add_rows(K, a, b, 0, row);
    return softmax_row(K, row);
}

// The first of the largest elements.
static ptrdiff_t best_of(ptrdiff_t K, const REAL* row) {
    ptrdiff_t best = 0;
    for (ptrdiff_t j = 1; j < K; j++)
        if (row[j] > row[best]) best = j;
    return best;
}

// p exp(a - sums), 0 where p is.
INLINE vector edge(vector p, vector a, vector sums) {
    return choose(p == 0, splat(0), p * exp_of(a - sums));
}
