// Sparsemax of segments, column by column.
#include "walk.h"

// out = max(x - threshold, 0): see kernels/sparsemax.py. What is not above a threshold is out of
// question for good, so the largest threshold tells what is left; once as many are left as before,
// their threshold is the one.
INLINE void sparsemax_of(Walk walk, const REAL* x, const REAL* unused, REAL* out) {
    vector peak = largest_over(walk, x), lost = {0};
    EACH(i, n, walk) {
        vector y = get(x + i, n) - peak;
        lost += choose(y != y, y, (vector){0});
        put(out + i, y, n);
    }
    lost = sum_over(walk, lost);  // NaN where an element is, or all of a segment are -inf
    vector bound = splat(-1), threshold, before = splat(-1);
    for (;;) {
        vector total = {0}, count = {0};
        EACH(i, n, walk) {
            vector y = fill(get(out + i, n), n, -INFINITY);
            total += choose(y > bound, y, (vector){0});
            count += choose(y > bound, splat(1), (vector){0});
        }
        total = sum_over(walk, total), count = sum_over(walk, count);
        threshold = (total - 1) / count;
        if (sum_lanes(choose(count != before, splat(1), (vector){0})) == 0) break;
        bound = larger(threshold, bound), before = count;
    }
    EACH(i, n, walk) put(out + i, larger(get(out + i, n) - threshold, (vector){0}) + lost, n);
}

// out = dy - the mean of dy where y is not 0; 0 where y is 0.
INLINE void sparsemax_backward_of(Walk walk, const REAL* dy, const REAL* y, REAL* out) {
    vector total = {0}, count = {0};
    EACH(i, n, walk) {
        vector support = choose(get(y + i, n) != 0, splat(1), (vector){0});
        total += get(dy + i, n) * support;
        count += support;
    }
    vector mean = sum_over(walk, total) / sum_over(walk, count);
    EACH(i, n, walk) {
        vector support = choose(get(y + i, n) != 0, splat(1), (vector){0});
        put(out + i, (get(dy + i, n) - mean) * support, n);
    }
}

EXPORT void sparsemax(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* x, REAL* out) {
    in_segments(sparsemax_of, first, last, width, offsets, x, x, out);
}
EXPORT void sparsemax_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* dy, const REAL* y, REAL* out) {
    in_segments(sparsemax_backward_of, first, last, width, offsets, dy, y, out);
}
