// Sums over all rows.
#include "common.h"

// out = sum of rows, in order, for columns first ... last - 1: zeros of no rows. TOGETHER rows at a
// time, whose sums are then added, which rounds less than one long sum.
EXPORT void sum_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t count, const REAL* rows,
    ptrdiff_t stride, REAL* out) {
    memset(out + first, 0, (size_t)(last - first) * sizeof(REAL));
    for (ptrdiff_t start = 0; start < count; start += TOGETHER) {
        ptrdiff_t end = least(start + TOGETHER, count);
        const REAL* from = rows + first;
        EACH_VECTOR(i, n, last - first) {
            vector sums = {0};
            for (ptrdiff_t r = start; r < end; r++) sums += get(from + r * stride + i, n);
            put(out + first + i, get(out + first + i, n) + sums, n);
        }
    }
}
