// Softmax and log-softmax of segments, column by column.
#include "walk.h"

// out = exp(x - m) / sum of exp(x - m), with m the largest element.
INLINE void softmax_of(Walk walk, const REAL* x, const REAL* unused, REAL* out) {
    vector peak = largest_over(walk, x), sums = {0};
    EACH(i, n, walk) {
        vector y = exp_of(get(x + i, n) - peak);
        sums += fill(y, n, 0);
        put(out + i, y, n);
    }
    vector part = 1 / sum_over(walk, sums);
    EACH(i, n, walk) put(out + i, get(out + i, n) * part, n);
}

// out = y (dy - sum of dy y).
INLINE void softmax_backward_of(Walk walk, const REAL* dy, const REAL* y, REAL* out) {
    vector sums = {0};
    EACH(i, n, walk) sums += get(dy + i, n) * get(y + i, n);
    vector total = sum_over(walk, sums);
    EACH(i, n, walk) put(out + i, (get(dy + i, n) - total) * get(y + i, n), n);
}

// The logarithm of sums. Of one row by the steps of `softmax_loss`, so that a cross-entropy has the
// bits of its log-probability.
INLINE vector log_over(Walk walk, vector sums) {
    return walk.is_row ? splat((REAL)log(sum_lanes(sums))) : log_of(sums);
}

// out = x - m - log of the sum of exp(x - m).
INLINE void log_softmax_of(Walk walk, const REAL* x, const REAL* unused, REAL* out) {
    vector peak = largest_over(walk, x), sums = {0};
    EACH(i, n, walk) sums += fill(exp_of(get(x + i, n) - peak), n, 0);
    vector total = log_over(walk, sums);
    EACH(i, n, walk) put(out + i, get(x + i, n) - peak - total, n);
}

// out = dy - exp(y) times the sum of dy.
INLINE void log_softmax_backward_of(Walk walk, const REAL* dy, const REAL* y, REAL* out) {
    vector sums = {0};
    EACH(i, n, walk) sums += get(dy + i, n);
    vector total = sum_over(walk, sums);
    EACH(i, n, walk) put(out + i, get(dy + i, n) - exp_of(get(y + i, n)) * total, n);
}

EXPORT void softmax(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* x, REAL* out) {
    in_segments(softmax_of, first, last, width, offsets, x, x, out);
}
EXPORT void softmax_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* dy, const REAL* y, REAL* out) {
    in_segments(softmax_backward_of, first, last, width, offsets, dy, y, out);
}
EXPORT void log_softmax(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* x, REAL* out) {
    in_segments(log_softmax_of, first, last, width, offsets, x, x, out);
}
EXPORT void log_softmax_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* dy, const REAL* y, REAL* out) {
    in_segments(log_softmax_backward_of, first, last, width, offsets, dy, y, out);
}
