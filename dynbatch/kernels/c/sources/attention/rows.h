// One query row against the rows of its sentence's keys or values. The order of every sum is fixed.
#include "functions.h"

#define WIDE (4 * LANES)
#define UNROLLED _Pragma("GCC unroll 4")

// out_j = scale * rows_j . x
static void dot_rows(
    ptrdiff_t n, ptrdiff_t width, const REAL* rows, const REAL* x, REAL scale, REAL* out) {
    ptrdiff_t j = 0;
    for (; j + 4 <= n; j += 4, rows += 4 * width) {
        vector sums[4] = {{0}};
        EACH_VECTOR(i, part, width) {
            vector other = get(x + i, part);
            UNROLLED for (int c = 0; c < 4; c++) sums[c] += get(rows + c * width + i, part) * other;
        }
        for (int c = 0; c < 4; c++) out[j + c] = scale * sum_lanes(sums[c]);
    }
    for (; j < n; j++, rows += width) {
        vector sums = {0};
        EACH_VECTOR(i, part, width) sums += get(rows + i, part) * get(x + i, part);
        out[j] = scale * sum_lanes(sums);
    }
}

// out = sum of w_j rows_j
static void sum_rows(ptrdiff_t n, ptrdiff_t width, const REAL* w, const REAL* rows, REAL* out) {
    ptrdiff_t i = 0;
    for (; i + WIDE <= width; i += WIDE) {
        vector sums[4] = {{0}};
        const REAL* row = rows + i;
        for (ptrdiff_t j = 0; j < n; j++, row += width)
            UNROLLED for (int c = 0; c < 4; c++) sums[c] += w[j] * load(row + c * LANES);
        UNROLLED for (int c = 0; c < 4; c++) store(out + i + c * LANES, sums[c]);
    }
    for (; i < width; i += LANES) {
        ptrdiff_t part = least(width - i, LANES);
        vector sums = {0};
        for (ptrdiff_t j = 0; j < n; j++) sums += w[j] * get(rows + j * width + i, part);
        put(out + i, sums, part);
    }
}

// rows_j = w_j x, or += where `adds`
static void outer_rows(
    ptrdiff_t n, ptrdiff_t width, const REAL* w, const REAL* x, int adds, REAL* rows) {
    for (ptrdiff_t j = 0; j < n; j++, rows += width) EACH_VECTOR(i, part, width) {
            vector before = adds ? get(rows + i, part) : splat(0);
            put(rows + i, before + w[j] * get(x + i, part), part);
        }
}

// w_j = exp(w_j - m) / sum of exp(w_j - m), with m the largest; zeros if all are -inf. Returns the
// logarithm of the sum of exp(w_j).
static REAL softmax_row(ptrdiff_t n, REAL* w) {
    vector peaks = splat(-INFINITY), sums = {0};
    EACH_VECTOR(i, part, n) peaks = larger(fill(get(w + i, part), part, -INFINITY), peaks);
    REAL peak = largest_lane(peaks);
    if (peak == -INFINITY) peak = 0;
    EACH_VECTOR(i, part, n) {
        vector y = exp_of(get(w + i, part) - peak);
        sums += fill(y, part, 0);
        put(w + i, y, part);
    }
    REAL total = sum_lanes(sums);
    if (total != 0) EACH_VECTOR(i, part, n) put(w + i, get(w + i, part) / total, part);
    return (REAL)log((double)total) + peak;
}

// d_j = w_j (d_j - sum of w_i d_i)
static void softmax_row_backward(ptrdiff_t n, const REAL* w, REAL* d) {
    vector sums = {0};
    EACH_VECTOR(i, part, n) sums += get(w + i, part) * get(d + i, part);
    REAL mean = sum_lanes(sums);
    EACH_VECTOR(i, part, n) put(d + i, get(w + i, part) * (get(d + i, part) - mean), part);
}
