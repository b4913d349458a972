// Sums over all rows.
#include "common.h"

// Columns whose sums stay in the first-level cache.
#define COLUMNS 8192

// out = sum of rows, in order, for columns first ... last - 1: zeros of no rows.
EXPORT void sum_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t count, const REAL* rows,
    ptrdiff_t stride, REAL* out) {
    for (ptrdiff_t start = first; start < last; start += COLUMNS) {
        ptrdiff_t width = least(COLUMNS, last - start);
        REAL* sums = out + start;
        memset(sums, 0, (size_t)width * sizeof(REAL));
        for (ptrdiff_t r = 0; r < count; r++) {
            const REAL* row = rows + r * stride + start;
            EACH_VECTOR(i, n, width) put(sums + i, get(sums + i, n) + get(row + i, n), n);
        }
    }
}
