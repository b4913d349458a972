// The sum of squares of a gradient.
#include "common.h"

// Σ v² of a block: in REAL, or in double where that overflows, though the norm may not.
static double square_sum(ptrdiff_t count, const REAL* values) {
    vector a = {0}, b = {0}, c = {0}, d = {0};
    ptrdiff_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        vector w = load(values + i), x = load(values + i + LANES);
        vector y = load(values + i + 2 * LANES), z = load(values + i + 3 * LANES);
        a += w * w, b += x * x, c += y * y, d += z * z;
    }
    EACH_VECTOR(k, n, count - i) {
        vector w = get(values + i + k, n);
        a += w * w;
    }
    double sum = sum_lanes((a + b) + (c + d));
    if (isfinite(sum)) return sum;
    sum = 0;
    for (ptrdiff_t k = 0; k < count; k++) sum += (double)values[k] * (double)values[k];
    return sum;
}

// sums[b] = Σ v² of the values b `size`, …, (b + 1) `size` - 1, for blocks first, …, last - 1.
EXPORT void sum_squares(ptrdiff_t first, ptrdiff_t last, ptrdiff_t size, ptrdiff_t count,
    const REAL* values, double* sums) {
    for (ptrdiff_t b = first; b < last; b++)
        sums[b] = square_sum(least(size, count - b * size), values + b * size);
}
