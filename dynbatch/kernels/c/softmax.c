// Softmax of segments whose elements lie one after the other.
#include "functions.h"

// out = exp(x - m) / sum of exp(x - m), with m the largest element of the segment.
EXPORT void softmax(
    ptrdiff_t first, ptrdiff_t last, const int64_t* offsets, const REAL* x, REAL* out) {
    for (ptrdiff_t k = first; k < last; k++) {
        ptrdiff_t width = offsets[k + 1] - offsets[k];
        const REAL* from = x + offsets[k];
        REAL* to = out + offsets[k];
        vector peaks = splat(-INFINITY);
        EACH_VECTOR(i, n, width) peaks = larger(fill(get(from + i, n), n, -INFINITY), peaks);
        REAL peak = largest_lane(peaks);
        vector sums = {0};
        EACH_VECTOR(i, n, width) {
            vector y = exp_of(get(from + i, n) - peak);
            sums += fill(y, n, 0);
            put(to + i, y, n);
        }
        REAL total = sum_lanes(sums);
        EACH_VECTOR(i, n, width) put(to + i, get(to + i, n) / total, n);
    }
}

// out = y (dy - sum of dy y).
EXPORT void softmax_backward(ptrdiff_t first, ptrdiff_t last, const int64_t* offsets,
    const REAL* dy, const REAL* y, REAL* out) {
    for (ptrdiff_t k = first; k < last; k++) {
        ptrdiff_t start = offsets[k], width = offsets[k + 1] - start;
        vector sums = {0};
        EACH_VECTOR(i, n, width) sums += get(dy + start + i, n) * get(y + start + i, n);
        REAL total = sum_lanes(sums);
        EACH_VECTOR(i, n, width) {
            put(out + start + i, (get(dy + start + i, n) - total) * get(y + start + i, n), n);
        }
    }
}
