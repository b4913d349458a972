// Kernels of segments of rows, column by column: softmax.c and sparsemax.c.
#include "functions.h"

// The vectors that make up a segment: of one column, neighbouring elements, which `over` brings
// together; of several columns, up to LANES columns of each row.
typedef struct {
    ptrdiff_t size, step, lanes;
    int is_row;
} Walk;

#define EACH(i, n, walk)                                                   \
    for (ptrdiff_t i = 0, n = least(walk.lanes, walk.size); i < walk.size; \
        i += walk.step, n = least(walk.lanes, walk.size - i))

INLINE vector sum_over(Walk walk, vector sums) {
    return walk.is_row ? splat(sum_lanes(sums)) : sums;
}
INLINE vector largest_over(Walk walk, const REAL* x) {
    vector peaks = splat(-INFINITY);
    EACH(i, n, walk) peaks = larger(fill(get(x + i, n), n, -INFINITY), peaks);
    return walk.is_row ? splat(largest_lane(peaks)) : peaks;
}

// Run a kernel on segments first ... last - 1 of rows of `width` columns.
typedef void Kernel(Walk walk, const REAL* a, const REAL* b, REAL* out);
INLINE void in_segments(Kernel* kernel, ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* a, const REAL* b, REAL* out) {
    for (ptrdiff_t k = first; k < last; k++) {
        ptrdiff_t rows = offsets[k + 1] - offsets[k];
        if (width == 1) {
            ptrdiff_t at = offsets[k];
            kernel((Walk){rows, LANES, LANES, 1}, a + at, b + at, out + at);
            continue;
        }
        EACH_VECTOR(c, n, rows ? width : 0) {
            ptrdiff_t at = offsets[k] * width + c;
            kernel((Walk){(rows - 1) * width + n, width, n, 0}, a + at, b + at, out + at);
        }
    }
}
