// The k largest rows of each segment, column by column, in their order: kernels/kmax_pool.py.
#include "common.h"

// As many as are kept beside each other, as the kernel declares; for more, NumPy sorts.
enum { MOST = 64 };

// The rows of the k largest of `rows` elements, `width` apart, in n columns: `at` from small to
// large. `best` falls, and of equal elements the first stands before.
INLINE void largest_of(const REAL* x, ptrdiff_t rows, ptrdiff_t width, ptrdiff_t n, ptrdiff_t k,
    vector* best, mask* at) {
    for (ptrdiff_t t = 0; t < rows; t++) {
        vector value = get(x + t * width, n);
        value = choose(value != value, splat(INFINITY), value);
        mask row = (mask){0} + (whole)t, is_in = {0};
        ptrdiff_t held = least(t, k);
        for (ptrdiff_t j = 0; j < held; j++) {  // once in, it moves all that follow on by one
            vector value_j = best[j];
            mask row_j = at[j];
            is_in |= value > value_j;
            best[j] = choose(is_in, value, value_j);
            at[j] = (is_in & row) | (~is_in & row_j);
            value = choose(is_in, value_j, value);
            row = (is_in & row_j) | (~is_in & row);
        }
        if (t < k) best[t] = value, at[t] = row;
    }
    for (ptrdiff_t i = 1; i < k; i++)
        for (ptrdiff_t j = i; j > 0; j--) {
            mask low = at[j - 1], high = at[j], is_wrong = low > high;
            at[j - 1] = (is_wrong & high) | (~is_wrong & low);
            at[j] = (is_wrong & low) | (~is_wrong & high);
        }
}

// Segments first, …, last - 1: out[s k + j] = the j-th of the k largest, and place[s k + j] its
// row in the segment, unless NULL.
EXPORT void kmax_pool(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, ptrdiff_t k,
    const int64_t* offsets, const REAL* x, REAL* out, whole* place) {
    vector best[MOST];
    mask at[MOST];
    for (ptrdiff_t s = first; s < last; s++) {
        const REAL* from = x + offsets[s] * width;
        ptrdiff_t rows = offsets[s + 1] - offsets[s];
        EACH_VECTOR(c, n, width) {
            largest_of(from + c, rows, width, n, k, best, at);
            for (ptrdiff_t j = 0; j < k; j++) {
                ptrdiff_t to = (s * k + j) * width + c;
                for (ptrdiff_t lane = 0; lane < n; lane++)
                    out[to + lane] = from[at[j][lane] * width + c + lane];
                if (place) put((REAL*)place + to, (vector)at[j], n);
            }
        }
    }
}

// out = dy in the rows that kmax_pool took it from, else 0.
EXPORT void kmax_pool_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, ptrdiff_t k,
    const int64_t* offsets, const REAL* dy, const whole* place, REAL* out) {
    for (ptrdiff_t s = first; s < last; s++) {
        REAL* to = out + offsets[s] * width;
        memset(to, 0, (size_t)((offsets[s + 1] - offsets[s]) * width) * sizeof(REAL));
        for (ptrdiff_t j = s * k; j < s * k + k; j++) EACH_VECTOR(c, n, width) {
                mask rows = (mask)get((const REAL*)place + j * width + c, n);
                for (ptrdiff_t lane = 0; lane < n; lane++)
                    to[rows[lane] * width + c + lane] = dy[j * width + c + lane];
            }
    }
}
